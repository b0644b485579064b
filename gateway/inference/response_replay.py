"""A stored response as the events that a stream of the response would have, each text in one piece. Pure.

Events of one response always have the same numbers, so that a client that lost a stream can request the rest. A
background response begins with the event `response.queued`; a failed or cancelled one ends with `response.failed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway import envelope

Json = dict[str, Any]

_SUCCESSFUL = ("completed", "incomplete")
_NOT_STARTED: Json = {"output": [], "usage": None, "error": None, "incomplete_details": None}


def opening(response: Mapping[str, Any]) -> list[Json]:
    """Return the events before any output."""
    initial = {**response, **_NOT_STARTED}
    events = [{"type": "response.in_progress", "response": initial | {"status": "in_progress"}}]
    first = "in_progress"
    if response["background"]:
        events.insert(0, {"type": "response.queued", "response": initial | {"status": "queued"}})
        first = "queued"
    return _numbered([{"type": "response.created", "response": initial | {"status": first}}, *events], 0)


def remaining(response: Mapping[str, Any]) -> list[Json]:
    """Return the events of a finished response after its opening."""
    events = [event for index, item in enumerate(response["output"]) for event in _item_events(index, item)]
    last = f"response.{response['status'] if response['status'] in _SUCCESSFUL else 'failed'}"
    return _numbered([*events, {"type": last, "response": dict(response)}], len(opening(response)))


def frame(event: Mapping[str, Any]) -> bytes:
    """Return the frame of an event."""
    kind: str = event["type"]
    return b"event: " + kind.encode() + b"\ndata: " + envelope.encode(event) + b"\n\n"


def _numbered(events: list[Json], first: int) -> list[Json]:
    return [event | {"sequence_number": number} for number, event in enumerate(events, first)]


def _item_events(index: int, item: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the events of one output item."""
    position = {"item_id": item["id"], "output_index": index}
    is_call = item["type"] == "function_call"
    empty: Json = {"arguments": ""} if is_call else {"content": []}
    yield {
        "type": "response.output_item.added",
        "output_index": index,
        "item": {**item, "status": "in_progress", **empty},
    }
    if is_call:
        kind, text = "response.function_call_arguments", item["arguments"]
        yield {"type": f"{kind}.delta", **position, "delta": text}
        yield {"type": f"{kind}.done", **position, "name": item["name"], "arguments": text}
    for number, part in enumerate(item.get("content", ())):
        yield from _part_events(item["type"], position | {"content_index": number}, part)
    yield {"type": "response.output_item.done", "output_index": index, "item": dict(item)}


def _part_events(kind: str, position: Json, part: Mapping[str, Any]) -> Iterator[Json]:
    if kind == "reasoning":
        yield {"type": "response.reasoning_text.delta", **position, "delta": part["text"]}
        yield {"type": "response.reasoning_text.done", **position, "text": part["text"]}
        return
    logprobs = {"logprobs": part["logprobs"]}
    yield {"type": "response.content_part.added", **position, "part": {**part, "text": "", "logprobs": []}}
    yield {"type": "response.output_text.delta", **position, "delta": part["text"], **logprobs}
    yield {"type": "response.output_text.done", **position, "text": part["text"], **logprobs}
    yield {"type": "response.content_part.done", **position, "part": dict(part)}
