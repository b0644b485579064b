"""What a call's arguments had come to when they were cut short is what clients that gather the stream of it have."""

import json

import jiter
import pytest

from engine.protocol.events import Finished, Started, ToolCallDelta, Usage
from engine.protocol.outcome import Outcome
from gateway.shapes.begun_json import as_far_as_whole
from gateway.shapes.chat import ChatText
from gateway.shapes.message import MessageText
from gateway.shapes.native import NativeText
from gateway.shapes.response import ResponseText

VALUES = [
    {},
    {"a": {"b": [1, [], {"c": None}], "d": ""}, "e": '}]\\"{,:', "f": [True, False, -1.5e-3]},
    {"ü\n": ["\u2028", "a, b", 0, 12], "": {"": {}}},
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", "\n:  ")])
def test_any_beginning_is_read_as_clients_read_it(value: dict, separators: tuple[str, str]):
    text = json.dumps(value, separators=separators)
    for at in range(1, len(text) + 1):
        assert json.loads(as_far_as_whole(text[:at])) == jiter.from_json(text[:at].encode(), partial_mode=True)
    assert as_far_as_whole(text) == text


def test_where_nothing_has_begun_there_is_nothing():
    assert [as_far_as_whole(text) for text in ("", " ", '"a', "tr")] == ["", "", "", ""]


CUT = '{"city": "Oslo", "days": [1, 2], "note": "so f'
PIECES = [
    ToolCallDelta(index=0, id="c0", name="f"),
    ToolCallDelta(index=0, arguments=CUT[:20]),
    ToolCallDelta(index=0, arguments=CUT[20:]),
]
END = Finished("length", Usage(prompt_tokens=3, completion_tokens=9))


def whole_of(shape) -> dict:
    outcome = Outcome()
    for event in (*PIECES, END):
        outcome.add(event)
    return json.loads(shape.whole(outcome))


def events_of(shape) -> list[dict]:
    frames = shape.begin(Started(3)) + b"".join(map(shape.tool_call, PIECES)) + shape.end(END)
    lines = [line.removeprefix(b"data: ") for line in frames.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def test_a_message_and_its_stream_tell_a_call_that_was_cut_short_alike():
    whole = whole_of(MessageText("0-0", "@cf/a/b"))
    assert (whole["stop_reason"], [block["type"] for block in whole["content"]]) == ("max_tokens", ["tool_use"])
    assert whole["content"][0]["input"] == {"city": "Oslo", "days": [1, 2]}
    told = "".join(
        event["delta"].get("partial_json", "") for event in events_of(MessageText("0-0", "@cf/a/b")) if "delta" in event
    )
    assert jiter.from_json(told.encode(), partial_mode=True) == whole["content"][0]["input"]


def test_a_completion_and_its_stream_tell_a_call_that_was_cut_short_alike():
    def shape() -> ChatText:
        return ChatText("0", 1, "@cf/a/b", has_usage_chunk=False, has_logprobs=False, is_bare=True)

    choice = whole_of(shape())["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", None)
    chunks = [chunk["choices"][0] for chunk in events_of(shape())]
    deltas = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", ())]
    assert chunks[-1]["finish_reason"] == "length"
    assert "".join(delta["function"]["arguments"] for delta in deltas) == CUT
    assert choice["message"]["tool_calls"] == [
        {"id": "c0", "type": "function", "function": {"name": "f", "arguments": CUT}}
    ]


def test_a_native_answer_and_its_stream_tell_a_call_that_was_cut_short_alike():
    assert whole_of(NativeText(has_tools=True))["result"]["tool_calls"] == [{"name": "f", "arguments": CUT}]
    entries = [entry for event in events_of(NativeText(has_tools=True)) for entry in event.get("tool_calls", ())]
    assert "".join(entry["function"]["arguments"] or "" for entry in entries) == CUT


def test_a_response_and_its_stream_tell_a_call_that_was_cut_short_alike():
    def shape() -> ResponseText:
        return ResponseText("00000000-0000-7000-8000-000000000000", 1, "@cf/a/b", {}, is_bare=True)

    whole, events = whole_of(shape()), events_of(shape())
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [(item["status"], item["arguments"]) for item in whole["output"]] == [("incomplete", CUT)]
    assert events[-1]["response"] == whole
