"""Text completions: every form of prompt is read, what cannot be done is refused by name, answers are OpenAI's."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from engine.protocol import alone
from engine.protocol.completions import (
    CompletionChunks,
    choice_object,
    completion_object,
    completions,
    logprobs_object,
)
from engine.protocol.events import TokenLogprob, ToolCallDelta, Usage
from engine.protocol.fields import BadInput
from engine.protocol.outcome import join_tool_calls

LOGPROBS = [TokenLogprob("Once", -0.5, (("Once", -0.5), ("The", -1.0))), TokenLogprob(" a", -2.0, ((" the", -0.1),))]
USAGE = Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=2)


def read(**body: Any) -> Any:
    return completions({"prompt": "a", **body}, context_window=64, vocab_size=100)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Once", ("Once",)),
        (["Once"], ("Once",)),
        (["Once", "Upon"], ("Once", "Upon")),
        ([1, 99], ((1, 99),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_every_form_of_a_prompt_is_read(prompt: Any, prompts: tuple[Any, ...]):
    assert read(prompt=prompt).prompts == prompts


@pytest.mark.parametrize("prompt", [None, 5, {}, [], [1, "a"], [[1], 2], [100], [-1], [[1], [100]], [True], [1.0]])
def test_what_is_no_prompt_is_refused(prompt: Any):
    with pytest.raises(BadInput, match="prompt"):
        read(prompt=prompt)


def test_a_prompt_s_control_tokens_count_and_each_has_all_its_tries():
    tasks = read(prompt=["a", "b"], n=2, seed=5).tasks()
    assert [(task.prompt, task.raw, task.num_choices) for task in tasks] == [("a", True, 2), ("b", True, 2)]
    assert [task.sampling.seed for task in tasks] == [5, 5]
    assert [(task.prompt_token_ids, task.num_choices) for task in read(prompt=[1, 2], best_of=3).tasks()] == [
        ((1, 2), 3)
    ]


def test_the_best_are_chosen_by_log_probabilities_that_nobody_else_sees():
    asked = read(best_of=3)
    assert asked.sampling.logprobs is None
    assert [(task.sampling.logprobs, task.num_choices) for task in asked.tasks()] == [(0, 3)]


def test_a_number_of_log_probabilities_is_read_and_not_a_yes():
    assert read(logprobs=5).sampling.logprobs == 5
    assert read(logprobs=0).sampling.logprobs == 0
    assert read().sampling.logprobs is None
    for wrong in (True, 21, -1, "2"):
        with pytest.raises(BadInput, match="'/logprobs'"):
            read(logprobs=wrong)


def test_no_more_answers_are_begun_than_one_body_may_ask():
    with pytest.raises(BadInput, match="/best_of"):
        read(prompt=["a"] * 100, n=100)


@pytest.mark.parametrize("name", ["suffix", "documents", "use_beam_search", "return_token_ids", "bad_words"])
@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_a_field_that_asks_for_nothing_is_no_reason_to_refuse(name: str, value: Any):
    assert read(**{name: value}).prompts == ("a",)


@pytest.mark.parametrize(
    ("name", "value"),
    [("suffix", "b"), ("bad_words", ["x"]), ("use_beam_search", True), ("prompt_logprobs", 0), ("best_of", 0)],
)
def test_what_cannot_be_done_is_refused_by_its_name(name: str, value: Any):
    with pytest.raises(BadInput, match=f"'/{name}'"):
        read(**{name: value})


def test_minimal_lengths_are_promised_only_where_they_can_be_kept():
    for more in ({}, {"ignore_eos": True}, {"stop_token_ids": [1]}):
        sampling = read(min_tokens=8, max_tokens=8, **more).sampling
        assert (sampling.min_tokens, sampling.max_tokens) == (8, 8)
    for more in ({"stop": "x"}, {"ignore_eos": True, "stop": ["x"]}, {"guided_regex": "a+"}):
        with pytest.raises(BadInput, match="'/min_tokens' cannot be combined"):
            read(min_tokens=3, **more)
    with pytest.raises(BadInput, match="'/min_tokens'"):
        read(min_tokens=9, ignore_eos=True, max_tokens=8)


def test_stop_tokens_share_their_places_with_stop_strings():
    assert read(stop_token_ids=[3, 4]).sampling.stop_token_ids == (3, 4)
    with pytest.raises(BadInput, match="'/stop_token_ids' must have <= 14"):
        read(stop=["x", "y"], stop_token_ids=list(range(15)))
    for wrong in ([True], [-1], [1 << 31], ["1"], 5):
        with pytest.raises(BadInput, match="'/stop_token_ids'"):
            read(stop_token_ids=wrong)


def test_the_model_s_own_sampling_fills_what_a_body_leaves_open():
    defaults = {"temperature": 0.5, "top_p": 0.9}
    filled = alone.with_defaults({"temperature": None, "top_p": 0.1, "top_k": -1}, defaults | {"top_k": 7})
    assert filled == {"temperature": 0.5, "top_p": 0.1, "top_k": -1}
    assert read(**filled).sampling.top_k == 0


def test_log_probabilities_come_in_columns_with_the_token_itself_among_the_likeliest():
    assert logprobs_object(LOGPROBS, 10) == {
        "text_offset": [10, 14],
        "token_logprobs": [-0.5, -2.0],
        "tokens": ["Once", " a"],
        "top_logprobs": [{"Once": -0.5, "The": -1.0}, {" a": -2.0, " the": -0.1}],
    }


def test_whole_answers_and_chunks_are_openai_s():
    whole = completion_object("cmpl-1", 7, "m", [choice_object(0, "Once a", "length", LOGPROBS)], USAGE)
    assert Completion.model_validate(whole).to_dict() == whole
    chunks = CompletionChunks("cmpl-1", 7, "m", has_usage_chunk=True)
    for document in (
        chunks.text(3, 'a "b"\n'),
        chunks.choice(0, " a", None, LOGPROBS, 4),
        chunks.choice(1, "", "stop", None, 0),
        chunks.usage(USAGE),
    ):
        found = json.loads(document)
        assert (found["id"], found["object"], found["created"], found["model"]) == ("cmpl-1", "text_completion", 7, "m")
        assert "usage" in found
        assert set(found["choices"][0]) == {"index", "text", "logprobs", "finish_reason"} if found["choices"] else True
    assert json.loads(chunks.text(3, 'a "b"\n'))["choices"][0]["text"] == 'a "b"\n'
    assert "usage" not in json.loads(CompletionChunks("i", 1, "m", has_usage_chunk=False).text(0, "a"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    *("prompt", "max_tokens", "n", "best_of", "echo", "logprobs", "suffix", "stop", "seed", "temperature", "top_k"),
    *("top_p", "min_p", "min_tokens", "stop_token_ids", "ignore_eos", "stream", "stream_options", "response_format"),
    *("guided_json", "repetition_penalty", "logit_bias", "prompt_logprobs", "add_special_tokens", "top_logprobs"),
]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_any_body_is_read_or_refused(body: dict[str, Any]):
    with contextlib.suppress(BadInput):
        asked = completions({"prompt": "a", **body}, context_window=64, vocab_size=100)
        assert len(asked.tasks()) == len(asked.prompts) * asked.num_tries


def test_the_pieces_of_calls_are_joined_in_the_order_of_their_index():
    deltas = [
        ToolCallDelta(index=1, id="b", name="second", arguments="{"),
        ToolCallDelta(index=0, id="a", name="first", arguments='{"x"'),
        ToolCallDelta(index=1, arguments="}"),
        ToolCallDelta(index=0, arguments=":1}"),
    ]
    first, second = join_tool_calls(deltas)
    assert (first.id, first.name, first.arguments) == ("a", "first", '{"x":1}')
    assert (second.id, second.name, second.arguments) == ("b", "second", "{}")
