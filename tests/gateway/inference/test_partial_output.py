"""Tool calls that were cut off: the whole response equals what clients accumulate from the stream."""

import json

import jiter
import pytest

from engine.protocol.chat_completions import ChatRenderer
from engine.protocol.events import Finished, Started, ToolCallDelta, Usage
from engine.protocol.outcome import Outcome
from engine.protocol.tasks.text_generation import NativeText
from gateway.inference.messages import MessageRenderer
from gateway.inference.partial_json import close_partial_json
from gateway.inference.response_renderer import ResponseRenderer

VALUES = [
    {},
    {"a": {"b": [1, [], {"c": None}], "d": ""}, "e": '}]\\"{,:', "f": [True, False, -1.5e-3]},
    {"ü\n": ["\u2028", "a, b", 0, 12], "": {"": {}}},
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", "\n:  ")])
def test_any_prefix_is_repaired_as_clients_repair_it(value: dict, separators: tuple[str, str]):
    text = json.dumps(value, separators=separators)
    for at in range(1, len(text) + 1):
        assert json.loads(close_partial_json(text[:at])) == jiter.from_json(text[:at].encode(), partial_mode=True)
    assert close_partial_json(text) == text


def test_prefix_without_a_value_becomes_empty():
    assert [close_partial_json(text) for text in ("", " ", '"a', "tr")] == ["", "", "", ""]


CUT = '{"city": "Oslo", "days": [1, 2], "note": "so f'
PIECES = [
    ToolCallDelta(index=0, id="c0", name="f"),
    ToolCallDelta(index=0, arguments=CUT[:20]),
    ToolCallDelta(index=0, arguments=CUT[20:]),
]
END = Finished("length", Usage(prompt_tokens=3, completion_tokens=9))


def whole_of(renderer) -> dict:
    outcome = Outcome()
    for event in (*PIECES, END):
        outcome.add(event)
    return json.loads(renderer.whole(outcome))


def events_of(renderer) -> list[dict]:
    frames = renderer.begin(Started(3)) + b"".join(map(renderer.tool_call, PIECES)) + renderer.end(END)
    lines = [line.removeprefix(b"data: ") for line in frames.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def test_message_and_its_stream_have_the_same_partial_tool_call():
    whole = whole_of(MessageRenderer("0-0", "@cf/a/b"))
    assert (whole["stop_reason"], [block["type"] for block in whole["content"]]) == ("max_tokens", ["tool_use"])
    assert whole["content"][0]["input"] == {"city": "Oslo", "days": [1, 2]}
    arguments = "".join(
        event["delta"].get("partial_json", "")
        for event in events_of(MessageRenderer("0-0", "@cf/a/b"))
        if "delta" in event
    )
    assert jiter.from_json(arguments.encode(), partial_mode=True) == whole["content"][0]["input"]


def test_chat_completion_and_its_stream_have_the_same_partial_tool_call():
    def renderer() -> ChatRenderer:
        return ChatRenderer("0", 1, "@cf/a/b", has_usage_chunk=False, has_logprobs=False)

    choice = whole_of(renderer())["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", None)
    chunks = [chunk["choices"][0] for chunk in events_of(renderer())]
    deltas = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", ())]
    assert chunks[-1]["finish_reason"] == "length"
    assert "".join(delta["function"]["arguments"] for delta in deltas) == CUT
    assert choice["message"]["tool_calls"] == [
        {"id": "c0", "type": "function", "function": {"name": "f", "arguments": CUT}}
    ]


def test_native_response_and_its_stream_have_the_same_partial_tool_call():
    assert whole_of(NativeText(has_tools=True))["tool_calls"] == [{"name": "f", "arguments": CUT}]
    entries = [entry for event in events_of(NativeText(has_tools=True)) for entry in event.get("tool_calls", ())]
    assert "".join(entry["function"]["arguments"] or "" for entry in entries) == CUT


def test_response_and_its_stream_have_the_same_partial_tool_call():
    def renderer() -> ResponseRenderer:
        return ResponseRenderer("00000000-0000-7000-8000-000000000000", 1, "@cf/a/b", {})

    whole, events = whole_of(renderer()), events_of(renderer())
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [(item["status"], item["arguments"]) for item in whole["output"]] == [("incomplete", CUT)]
    assert events[-1]["response"] == whole
