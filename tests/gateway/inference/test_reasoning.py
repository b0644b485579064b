"""Reasoning is rendered before the text and apart from it, in the formats that have a field for reasoning."""

import json

from engine.protocol.events import Event, Finished, Started, Token, ToolCallDelta, Usage
from engine.protocol.outcome import Outcome
from gateway.inference.messages import MessageRenderer
from gateway.inference.response_renderer import ResponseRenderer

USAGE = Usage(prompt_tokens=3, completion_tokens=9, reasoning_tokens=4)
EVENTS: list[Event] = [
    Token("Let me ", is_reasoning=True),
    Token("see.", is_reasoning=True),
    Token("Here: "),
    ToolCallDelta(index=0, id="c0", name="f"),
    ToolCallDelta(index=0, arguments="{}"),
    Finished("tool_calls", USAGE),
]


def stream(renderer: ResponseRenderer | MessageRenderer) -> list[dict]:
    """Return the parsed events of a stream of EVENTS."""
    frames = renderer.begin(Started(3))
    for event in EVENTS:
        if isinstance(event, Token):
            frames += renderer.reasoning(event.text) if event.is_reasoning else renderer.text(event.text, ())
        elif isinstance(event, ToolCallDelta):
            frames += renderer.tool_call(event)
        elif isinstance(event, Finished):
            frames += renderer.end(event)
    return [json.loads(frame.split(b"\ndata: ")[1]) for frame in frames.split(b"\n\n") if frame]


def outcome() -> Outcome:
    gathered = Outcome()
    for event in EVENTS:
        gathered.add(event)
    return gathered


def response() -> ResponseRenderer:
    return ResponseRenderer("00000000-0000-7000-8000-000000000000", 1, "@cf/a/b", {})


def test_response_has_a_reasoning_item():
    whole = json.loads(response().whole(outcome()))
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    events = stream(response())
    assert events[-1]["response"] == whole
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert deltas == ["Let me ", "see."]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_message_has_a_thinking_block():
    whole = json.loads(MessageRenderer("0-0", "@cf/a/b").whole(outcome()))
    assert whole["content"][0] == {"type": "thinking", "thinking": "Let me see.", "signature": ""}
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    events = stream(MessageRenderer("0-0", "@cf/a/b"))
    starts = [(e["index"], e["content_block"]["type"]) for e in events if e["type"] == "content_block_start"]
    assert starts == [(0, "thinking"), (1, "text"), (2, "tool_use")]
    deltas = [event["delta"] for event in events if event.get("index") == 0 and "delta" in event]
    assert deltas == [{"type": "thinking_delta", "thinking": text} for text in ("Let me ", "see.")]
