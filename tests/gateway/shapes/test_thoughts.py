"""What a model thinks before it answers, in the shapes that have a place for it: apart from what it says, and first."""

import json

from engine.protocol.events import Event, Finished, Started, Token, ToolCallDelta, Usage
from engine.protocol.outcome import Outcome
from gateway.shapes.message import MessageText
from gateway.shapes.response import ResponseText

USAGE = Usage(prompt_tokens=3, completion_tokens=9, reasoning_tokens=4)
EVENTS: list[Event] = [
    Token("Let me ", is_reasoning=True),
    Token("see.", is_reasoning=True),
    Token("Here: "),
    ToolCallDelta(index=0, id="c0", name="f"),
    ToolCallDelta(index=0, arguments="{}"),
    Finished("tool_calls", USAGE),
]


def told(shape: ResponseText | MessageText) -> list[dict]:
    """The stream of EVENTS, its events parsed."""
    frames = shape.begin(Started(3))
    for event in EVENTS:
        if isinstance(event, Token):
            frames += shape.reasoning(event.text) if event.is_reasoning else shape.text(event.text, ())
        elif isinstance(event, ToolCallDelta):
            frames += shape.tool_call(event)
        elif isinstance(event, Finished):
            frames += shape.end(event)
    return [json.loads(frame.split(b"\ndata: ")[1]) for frame in frames.split(b"\n\n") if frame]


def outcome() -> Outcome:
    gathered = Outcome()
    for event in EVENTS:
        gathered.add(event)
    return gathered


def response() -> ResponseText:
    return ResponseText("00000000-0000-7000-8000-000000000000", 1, "@cf/a/b", {}, is_bare=True)


def test_a_response_has_an_item_of_thoughts():
    whole = json.loads(response().whole(outcome()))
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    events = told(response())
    assert events[-1]["response"] == whole
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert deltas == ["Let me ", "see."]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_message_has_a_block_of_thoughts():
    whole = json.loads(MessageText("0-0", "@cf/a/b").whole(outcome()))
    assert whole["content"][0] == {"type": "thinking", "thinking": "Let me see.", "signature": ""}
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    events = told(MessageText("0-0", "@cf/a/b"))
    starts = [(e["index"], e["content_block"]["type"]) for e in events if e["type"] == "content_block_start"]
    assert starts == [(0, "thinking"), (1, "text"), (2, "tool_use")]
    thoughts = [event["delta"] for event in events if event.get("index") == 0 and "delta" in event]
    assert thoughts == [{"type": "thinking_delta", "thinking": text} for text in ("Let me ", "see.")]
