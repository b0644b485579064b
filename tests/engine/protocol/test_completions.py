"""Tests of text completions: every form of prompt is read, unsupported fields are rejected, and responses have
OpenAI's format."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from engine.protocol.completions import CompletionRenderer, logprobs_object, read_completion_request
from engine.protocol.events import ChoiceEnded, Finished, Started, Token, TokenLogprob, ToolCallDelta, Usage
from engine.protocol.fields import BadInput
from engine.protocol.outcome import Outcome, join_tool_calls
from engine.protocol.sampling import with_defaults

LOGPROBS = [TokenLogprob("Once", -0.5, (("Once", -0.5), ("The", -1.0))), TokenLogprob(" a", -2.0, ((" the", -0.1),))]
USAGE = Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=2)


def read(**body: Any) -> Any:
    return read_completion_request({"prompt": "a", **body}, context_window=64, vocab_size=100)


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
def test_every_form_of_prompt_is_read(prompt: Any, prompts: tuple[Any, ...]):
    assert read(prompt=prompt).prompts == prompts


@pytest.mark.parametrize("prompt", [None, 5, {}, [], [1, "a"], [[1], 2], [100], [-1], [[1], [100]], [True], [1.0]])
def test_malformed_prompt_is_rejected(prompt: Any):
    with pytest.raises(BadInput, match="prompt"):
        read(prompt=prompt)


def test_each_prompt_becomes_a_raw_task_with_all_its_candidates():
    tasks = read(prompt=["a", "b"], n=2, seed=5).tasks()
    assert [(task.prompt, task.raw, task.num_choices) for task in tasks] == [("a", True, 2), ("b", True, 2)]
    assert [task.sampling.seed for task in tasks] == [5, 5]
    assert [(task.prompt_token_ids, task.num_choices) for task in read(prompt=[1, 2], best_of=3).tasks()] == [
        ((1, 2), 3)
    ]


def test_best_of_requests_logprobs_that_the_response_omits():
    request = read(best_of=3)
    assert request.sampling.logprobs is None
    assert [(task.sampling.logprobs, task.num_choices) for task in request.tasks()] == [(0, 3)]


def test_logprobs_must_be_a_number():
    assert read(logprobs=5).sampling.logprobs == 5
    assert read(logprobs=0).sampling.logprobs == 0
    assert read().sampling.logprobs is None
    for wrong in (True, 21, -1, "2"):
        with pytest.raises(BadInput, match="'/logprobs'"):
            read(logprobs=wrong)


def test_too_many_sequences_in_one_request_are_rejected():
    with pytest.raises(BadInput, match="/best_of"):
        read(prompt=["a"] * 100, n=100)


@pytest.mark.parametrize("name", ["suffix", "documents", "use_beam_search", "return_token_ids", "bad_words"])
@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_unsupported_field_without_effect_is_accepted(name: str, value: Any):
    assert read(**{name: value}).prompts == ("a",)


@pytest.mark.parametrize(
    ("name", "value"),
    [("suffix", "b"), ("bad_words", ["x"]), ("use_beam_search", True), ("prompt_logprobs", 0), ("best_of", 0)],
)
def test_unsupported_field_is_rejected_by_name(name: str, value: Any):
    with pytest.raises(BadInput, match=f"'/{name}'"):
        read(**{name: value})


def test_min_tokens_is_rejected_where_the_text_may_end_earlier():
    for more in ({}, {"ignore_eos": True}, {"stop_token_ids": [1]}):
        sampling = read(min_tokens=8, max_tokens=8, **more).sampling
        assert (sampling.min_tokens, sampling.max_tokens) == (8, 8)
    for more in ({"stop": "x"}, {"ignore_eos": True, "stop": ["x"]}, {"guided_regex": "a+"}):
        with pytest.raises(BadInput, match="'/min_tokens' cannot be combined"):
            read(min_tokens=3, **more)
    with pytest.raises(BadInput, match="'/min_tokens'"):
        read(min_tokens=9, ignore_eos=True, max_tokens=8)


def test_stop_tokens_and_stop_strings_share_one_limit():
    assert read(stop_token_ids=[3, 4]).sampling.stop_token_ids == (3, 4)
    with pytest.raises(BadInput, match="'/stop_token_ids' must have <= 14"):
        read(stop=["x", "y"], stop_token_ids=list(range(15)))
    for wrong in ([True], [-1], [1 << 31], ["1"], 5):
        with pytest.raises(BadInput, match="'/stop_token_ids'"):
            read(stop_token_ids=wrong)


def test_model_defaults_fill_omitted_fields():
    defaults = {"temperature": 0.5, "top_p": 0.9}
    filled = with_defaults({"temperature": None, "top_p": 0.1, "top_k": -1}, defaults | {"top_k": 7})
    assert filled == {"temperature": 0.5, "top_p": 0.1, "top_k": -1}
    assert read(**filled).sampling.top_k == 0


def test_logprobs_are_columns_and_include_the_token_itself():
    assert logprobs_object(LOGPROBS, 10) == {
        "text_offset": [10, 14],
        "token_logprobs": [-0.5, -2.0],
        "tokens": ["Once", " a"],
        "top_logprobs": [{"Once": -0.5, "The": -1.0}, {" a": -2.0, " the": -0.1}],
    }


def renderer(**body: Any) -> CompletionRenderer:
    return CompletionRenderer("cmpl-1", 7, "m", read(**body), has_usage_chunk=True)


def test_whole_response_and_chunks_have_openais_format():
    outcome = Outcome()
    for event in (Token("Once a", logprobs=tuple(LOGPROBS)), Finished("length", USAGE)):
        outcome.add(event)
    whole = json.loads(renderer(logprobs=1).whole(outcome))
    assert Completion.model_validate(whole).to_dict() == whole
    stream = renderer(n=4, logprobs=1)
    frames = [
        stream.text('a "b"\n', (), 3),
        stream.text(" a", LOGPROBS, 0),
        stream.choice_end(ChoiceEnded(1, "stop")),
        *stream.end(Finished("stop", USAGE)).split(b"\n\n")[:1],
    ]
    for frame in frames:
        found = json.loads(frame.removeprefix(b"data: "))
        assert (found["id"], found["object"], found["created"], found["model"]) == ("cmpl-1", "text_completion", 7, "m")
        assert "usage" in found
        assert set(found["choices"][0]) == {"index", "text", "logprobs", "finish_reason"} if found["choices"] else True
    assert json.loads(frames[0].removeprefix(b"data: "))["choices"][0]["text"] == 'a "b"\n'


@pytest.mark.parametrize(
    ("body", "rendered", "tasks_echo"),
    [
        ({"prompt": ["a", "b"], "echo": True}, ["a", "b"], False),
        ({"prompt": "a", "echo": True, "logprobs": 0}, [], True),
        ({"prompt": "a", "echo": True, "max_tokens": 0}, [], True),
        ({"prompt": [1, 2], "echo": True}, [], True),
        ({"prompt": [1, 2], "logprobs": 1}, [], False),
    ],
)
def test_prompt_is_echoed_by_the_node_if_the_renderer_does_not_know_its_text(
    body: dict[str, Any], rendered: list[str], tasks_echo: bool
):
    frames = renderer(**body).begin(Started())
    found = [json.loads(frame.removeprefix(b"data: ")) for frame in frames.split(b"\n\n") if frame]
    assert [chunk["choices"][0]["text"] for chunk in found] == rendered
    assert {task.echoes_prompt for task in read(**body).tasks()} == {tasks_echo}


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
def test_any_body_is_read_or_rejected_with_bad_input(body: dict[str, Any]):
    with contextlib.suppress(BadInput):
        request = read_completion_request({"prompt": "a", **body}, context_window=64, vocab_size=100)
        assert len(request.tasks()) == len(request.prompts) * request.num_candidates


def test_tool_call_deltas_are_joined_by_index():
    deltas = [
        ToolCallDelta(index=1, id="b", name="second", arguments="{"),
        ToolCallDelta(index=0, id="a", name="first", arguments='{"x"'),
        ToolCallDelta(index=1, arguments="}"),
        ToolCallDelta(index=0, arguments=":1}"),
    ]
    first, second = join_tool_calls(deltas)
    assert (first.id, first.name, first.arguments) == ("a", "first", '{"x":1}')
    assert (second.id, second.name, second.arguments) == ("b", "second", "{}")
