"""Tests of chat completions: bodies are read as tasks, errors name the field, responses are in OpenAI's format."""

import json

import pytest

from engine.protocol.chat_completions import ChatChunks, chat_completion, read_chat_request
from engine.protocol.events import TokenLogprob, Usage
from engine.protocol.fields import BadInput
from engine.protocol.messages import ChatMessage
from engine.protocol.outcome import Choice
from engine.protocol.rendering import logprobs_object

USER = {"role": "user", "content": "Hi"}


def read(**fields):
    return read_chat_request({"messages": [USER], **fields}, default_max_tokens=256, context_window=2048)


def refusal(**fields) -> str:
    with pytest.raises(BadInput) as caught:
        read(**fields)
    return str(caught.value)


def test_omitted_sampling_parameters_have_the_defaults_of_the_contract():
    sampling = read().sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (256, 0.6, 1.0, 0)
    assert sampling.seed is None
    assert sampling.logprobs is None


def test_default_max_tokens_is_limited_by_the_context_window():
    task = read_chat_request({"messages": [USER]}, default_max_tokens=256, context_window=64)
    assert task.sampling.max_tokens == 64


def test_every_sampling_field_is_read():
    sampling = read(
        max_completion_tokens=7, max_tokens=9, temperature=0, top_p=0.5, top_k=3, min_p=0.1, seed=-1, stop="x",
        presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.5, top_logprobs=2, ignore_eos=True,
        logprobs=True, stop_token_ids=[5], logit_bias={"7": -100, "8": 0.5},
    ).sampling  # fmt: skip
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0, 0.5, 3)
    assert (sampling.min_p, sampling.seed, sampling.stop) == (0.1, 2**63 - 1, ("x",))
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.5)
    assert (sampling.logprobs, sampling.ignore_eos) == (2, True)
    assert (sampling.stop_token_ids, sampling.logit_bias) == ((5,), ((7, -100.0), (8, 0.5)))
    assert [read(n=number).num_choices for number in (1, 8)] == [1, 8]


def test_reasoning_effort_and_switches_become_template_variables():
    assert read().template_kwargs == {}
    assert read().separates_reasoning
    assert read(reasoning_effort="high").template_kwargs == {"reasoning_effort": "high"}
    off = {"enable_thinking": False, "thinking": False}
    assert read(reasoning_effort="none").template_kwargs == off
    switches = {"enable_thinking": False, "clear_thinking": True}
    assert read(chat_template_kwargs=switches).template_kwargs == off | {"clear_thinking": True}
    assert refusal(reasoning_effort="much").startswith("'/reasoning_effort' must be one of none, minimal, low")
    assert refusal(reasoning_effort=["low"]).startswith("'/reasoning_effort' must be one of")
    assert refusal(chat_template_kwargs={"enable_thinking": "no"}).startswith(
        "Type mismatch of '/chat_template_kwargs/"
    )


def test_reasoning_of_earlier_messages_is_read_under_either_name():
    for name in ("reasoning_content", "reasoning"):
        task = read(messages=[USER, {"role": "assistant", "content": "A", name: "Because."}])
        assert task.messages[1] == ChatMessage("assistant", "A", reasoning="Because.")
    assert "'/messages/1/reasoning_content'" in refusal(
        messages=[USER, {"role": "assistant", "content": "A", "reasoning_content": 5}]
    )


def test_reasoning_is_rendered_beside_the_content():
    usage = Usage(prompt_tokens=1, completion_tokens=5, reasoning_tokens=3)
    thoughtful = Choice(["A"], reasoning_texts=["Because."], reason="stop")
    whole = chat_completion("id", 1, "m", [thoughtful, Choice(["B"], reason="length")], usage)
    assert whole["choices"][0]["message"] | {"refusal": None} == {
        "role": "assistant", "content": "A", "refusal": None, "reasoning_content": "Because."
    }  # fmt: skip
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert whole["choices"][1] == {
        "index": 1, "message": {"role": "assistant", "content": "B", "refusal": None}, "logprobs": None,
        "finish_reason": "length",
    }  # fmt: skip
    chunks = ChatChunks("id", 1, "m", has_usage_chunk=False)
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in (chunks.reasoning("Be"), chunks.reasoning("c."))]
    assert deltas == [{"role": "assistant", "reasoning_content": "Be"}, {"reasoning_content": "c."}]
    assert json.loads(chunks.text("A"))["choices"][0]["delta"] == {"content": "A"}
    assert chunks.reasoning("") == b""


def test_zero_top_p_and_repetition_penalty_become_the_smallest_usable_value():
    sampling = read(top_p=0, repetition_penalty=0).sampling
    assert sampling.top_p > 0
    assert sampling.repetition_penalty > 0


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "developer", "content": "x"}], ChatMessage("system", "x")),
        ([{"role": "assistant", "content": None}], ChatMessage("assistant")),
        ([{"role": "assistant"}], ChatMessage("assistant")),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
         ChatMessage("user", "a\nb")),
        ([{"role": "user", "content": ""}], ChatMessage("user", "")),
    ],
)  # fmt: skip
def test_messages_become_plain_text(messages, expected):
    assert read(messages=messages).messages == (expected,)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "/messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "/messages/0/content"),
        ({"messages": [USER, {"role": "wizard", "content": "x"}]}, "/messages/1/role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "/messages/0/content"),
        ({"messages": ["x"]}, "/messages/0"),
        ({"messages": [USER] * 1001}, "/messages"),
        ({"max_tokens": 0}, "/max_tokens"),
        ({"max_tokens": 1.5}, "/max_tokens"),
        ({"max_tokens": True}, "/max_tokens"),
        ({"max_tokens": 2049}, "/max_tokens"),
        ({"max_tokens": "ten"}, "/max_tokens"),
        ({"temperature": 5.1}, "/temperature"),
        ({"temperature": "hot"}, "/temperature"),
        ({"top_p": -0.1}, "/top_p"),
        ({"top_k": 1001}, "/top_k"),
        ({"top_logprobs": 21}, "/top_logprobs"),
        ({"top_logprobs": 2}, "/top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "/logprobs"),
        ({"logprobs": 1}, "/logprobs"),
        ({"n": 9}, "/n' must be >= 1 and <= 8"),
        ({"n": 0}, "/n"),
        ({"stop": ["a"] * 17}, "/stop"),
        ({"stop": ["é" * 129]}, "/stop"),
        ({"stop": [""]}, "/stop"),
        ({"stop": 1}, "/stop"),
        ({"logit_bias": {"1": 100.5}}, "/logit_bias' must be >= -100 and <= 100"),
        ({"logit_bias": {"1": "hot"}}, "/logit_bias"),
        ({"logit_bias": {"-1": 2}}, "/logit_bias"),
        ({"logit_bias": {"wizard": 2}}, "/logit_bias"),
        ({"logit_bias": {"\u0663": 2}}, "/logit_bias"),
        ({"logit_bias": {str(1 << 31): 2}}, "/logit_bias"),
        ({"logit_bias": [1]}, "/logit_bias"),
        ({"logit_bias": {str(token_id): 1 for token_id in range(1025)}}, "/logit_bias' must have <= 1024"),
        ({"stop": ["a"] * 15, "stop_token_ids": [1, 2]}, "/stop_token_ids' must have <= 1"),
        ({"stop_token_ids": [-1]}, "/stop_token_ids"),
        ({"chat_template": "{{7*7}}"}, "/chat_template"),
        ({"chat_template_kwargs": {"x": 1}}, "/chat_template_kwargs"),
        ({"prompt_embeds": "gASV"}, "/prompt_embeds"),
        ({"prompt_token_ids": [1]}, "/prompt_token_ids"),
    ],
)
def test_error_names_the_field_and_never_its_value(fields, named):
    message = refusal(**fields)
    assert named in message
    assert "wizard" not in message
    assert "hot" not in message


def test_chunks_are_valid_json_and_join_to_the_text():
    chunks = ChatChunks("id-1", 7, 'mo"del', has_usage_chunk=True)
    documents = [
        chunks.text('He"l', ()),
        chunks.text("lo\n✓", ()),
        chunks.end("stop"),
        chunks.usage(Usage(prompt_tokens=3)),
    ]
    read_back = [json.loads(document) for document in documents]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in read_back[:3]) == 'He"llo\n✓'
    assert read_back[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "role" not in read_back[1]["choices"][0]["delta"]
    assert [c["choices"][0]["finish_reason"] for c in read_back[:3]] == [None, None, "stop"]
    assert read_back[3]["choices"] == []
    assert read_back[3]["usage"]["total_tokens"] == 3
    assert {(c["id"], c["created"], c["model"], c["object"]) for c in read_back} == {
        ("id-1", 7, 'mo"del', "chat.completion.chunk")
    }
    assert [c["usage"] for c in read_back[:3]] == [None, None, None]


def test_stream_without_text_still_names_the_role():
    (choice,) = json.loads(ChatChunks("i", 1, "m", has_usage_chunk=False).end("stop"))["choices"]
    assert (choice["delta"], choice["finish_reason"]) == ({"role": "assistant", "content": ""}, "stop")


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "text", "text": "I am sorry."}, {"type": "refusal", "refusal": "No."}]},
        {"content": None, "refusal": "I am sorry.\nNo."},
    ],
)
def test_refusal_parts_of_an_assistant_are_text(message):
    task = read_chat_request(
        {"messages": [{"role": "assistant", **message}, {"role": "user", "content": "Why?"}]},
        default_max_tokens=16,
        context_window=2048,
    )
    assert task.messages[0].content == "I am sorry.\nNo."


def test_refusal_part_in_a_user_message_is_rejected():
    body = {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}]}
    with pytest.raises(BadInput, match="'/messages/0/content' may hold"):
        read_chat_request(body, default_max_tokens=16, context_window=2048)


def test_token_inside_a_character_shows_its_exact_bytes():
    first = TokenLogprob("\ufffd", -1.0, (("x", -2.0), ("\ufffd", -3.0)), (b"\xc3", b"x", b"\xe2\x82"))
    second = TokenLogprob("\ufffd", -1.0, (), (b"\xa9",))
    shown = logprobs_object([first, second])["content"]
    assert bytes(byte for entry in shown for byte in entry["bytes"]).decode() == "é"
    assert [other["bytes"] for other in shown[0]["top_logprobs"]] == [[120], [0xE2, 0x82]]


def test_logprobs_have_bytes_and_alternatives_whole_and_streamed():
    entry = TokenLogprob("é", -0.5, (("é", -0.5), ("e", -1.5)))
    choice = Choice(["é"], logprobs=[entry], reason="stop")
    completion = chat_completion("i", 1, "m", [choice], Usage(), has_logprobs=True)
    whole = completion["choices"][0]["logprobs"]["content"]
    chunk = json.loads(ChatChunks("i", 1, "m", has_usage_chunk=False).text("é", [entry]))
    assert whole == chunk["choices"][0]["logprobs"]["content"]
    assert whole[0]["bytes"] == [0xC3, 0xA9]
    assert [alternative["token"] for alternative in whole[0]["top_logprobs"]] == ["é", "e"]
