"""A whole OpenAI `response` as the events that a stream of it would have: what was said in one piece each. Pure.

Events of the same response always have the same numbers, so that whoever lost a stream can ask for the rest. A response
of the background begins with the event that it is queued. One that failed, or was cancelled, ends with the event that
says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway import envelope

Json = dict[str, Any]

_WENT_WELL = ("completed", "incomplete")
_BEGUN: Json = {"output": [], "usage": None, "error": None, "incomplete_details": None}


def opening(response: Mapping[str, Any]) -> list[Json]:
    """The events before anything is said."""
    begun = {**response, **_BEGUN}
    events = [{"type": "response.in_progress", "response": begun | {"status": "in_progress"}}]
    first = "in_progress"
    if response["background"]:
        events.insert(0, {"type": "response.queued", "response": begun | {"status": "queued"}})
        first = "queued"
    return _numbered([{"type": "response.created", "response": begun | {"status": first}}, *events], 0)


def rest(response: Mapping[str, Any]) -> list[Json]:
    """The events of a finished response that follow its opening."""
    events = [event for index, item in enumerate(response["output"]) for event in _of_item(index, item)]
    last = f"response.{response['status'] if response['status'] in _WENT_WELL else 'failed'}"
    return _numbered([*events, {"type": last, "response": dict(response)}], len(opening(response)))


def frame(event: Mapping[str, Any]) -> bytes:
    """An event as it goes over the wire."""
    kind: str = event["type"]
    return b"event: " + kind.encode() + b"\ndata: " + envelope.encode(event) + b"\n\n"


def _numbered(events: list[Json], first: int) -> list[Json]:
    return [event | {"sequence_number": number} for number, event in enumerate(events, first)]


def _of_item(index: int, item: Mapping[str, Any]) -> Iterator[Json]:
    """One item of the output: it opens, is told, and closes."""
    place = {"item_id": item["id"], "output_index": index}
    is_call = item["type"] == "function_call"
    empty: Json = {"arguments": ""} if is_call else {"content": []}
    yield {
        "type": "response.output_item.added",
        "output_index": index,
        "item": {**item, "status": "in_progress", **empty},
    }
    if is_call:
        kind, text = "response.function_call_arguments", item["arguments"]
        yield {"type": f"{kind}.delta", **place, "delta": text}
        yield {"type": f"{kind}.done", **place, "name": item["name"], "arguments": text}
    for number, part in enumerate(item.get("content", ())):
        yield from _of_part(item["type"], place | {"content_index": number}, part)
    yield {"type": "response.output_item.done", "output_index": index, "item": dict(item)}


def _of_part(kind: str, place: Json, part: Mapping[str, Any]) -> Iterator[Json]:
    if kind == "reasoning":
        yield {"type": "response.reasoning_text.delta", **place, "delta": part["text"]}
        yield {"type": "response.reasoning_text.done", **place, "text": part["text"]}
        return
    logprobs = {"logprobs": part["logprobs"]}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": "", "logprobs": []}}
    yield {"type": "response.output_text.delta", **place, "delta": part["text"], **logprobs}
    yield {"type": "response.output_text.done", **place, "text": part["text"], **logprobs}
    yield {"type": "response.content_part.done", **place, "part": dict(part)}
