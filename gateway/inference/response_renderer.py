"""Rendering of OpenAI's `response`, whole and as events: items that open, grow and close. Pure.

The items of a response are reasoning, text and tool calls, in the order of generation; events are numbered. The
constant part of an item's delta events is rendered once. A stream ends with `response.completed` or
`response.incomplete`, or with an `error` event if it breaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.protocol.events import Finished, Started, TokenLogprob, ToolCallDelta, Usage
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import logprobs_object
from gateway import envelope
from gateway.errors import Refusal
from gateway.streaming import OwnErrorFrame

# Fields that a response repeats from its request, with the values for omitted ones.
REPEATED_FIELDS: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}

Status = Literal["queued", "in_progress", "completed", "incomplete"]
Kind = Literal["reasoning", "message", "function_call"]

_PREFIXES: dict[Kind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_DELTAS: dict[Kind, tuple[bytes, bytes]] = {  # name of the event, and position inside the item
    "reasoning": (b"reasoning_text", b',"content_index":0'),
    "message": (b"output_text", b',"content_index":0'),
    "function_call": (b"function_call_arguments", b""),
}


def response_id_of(request_id: str) -> str:
    """Return the id of the response to a request with this id (a UUID)."""
    return f"resp_{request_id.replace('-', '')}"


def request_id_of(response_id: str) -> str:
    """Return the id of the request that a response belongs to."""
    digits = response_id.removeprefix("resp_")
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


@dataclass
class _Item:
    """One item of the output. `delta` is the start of its delta events, up to the text."""

    index: int
    id: str
    kind: Kind
    call: ToolCallDelta | None
    delta: bytes
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def part(self) -> dict[str, Any]:
        """The only content part of a message or of reasoning."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        logprobs = logprobs_object(self.logprobs)["content"]
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": logprobs}

    def to_object(self, status: Status, *, is_empty: bool = False) -> dict[str, Any]:
        """Return the item as JSON; `is_empty` omits its content."""
        if self.call is not None:
            return {
                "id": self.id,
                "type": "function_call",
                "status": status,
                "call_id": self.call.id,
                "name": self.call.name,
                "arguments": "" if is_empty else self.text,
            }
        content = [] if is_empty else [self.part]
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}


class ResponseRenderer(OwnErrorFrame):
    """Renders one response. `request` is the accepted body, whose REPEATED_FIELDS the response repeats."""

    def __init__(self, request_id: str, created: int, model: str, request: Mapping[str, Any]) -> None:
        self._suffix = request_id.replace("-", "")
        self._head = {
            "id": response_id_of(request_id),
            "object": "response",
            "created_at": created,
            "model": model,
            "background": request.get("background", False),
            "error": None,
            **{name: request.get(name, default) for name, default in REPEATED_FIELDS.items()},
        }
        self._items: list[_Item] = []
        self._done: list[dict[str, Any]] = []
        self._number = 0  # sequence number of the next event
        self._has_begun = False

    def whole(self, outcome: Outcome) -> bytes:
        return envelope.encode(self.response(outcome))

    def queued(self) -> dict[str, Any]:
        """Return the response of a background request that has not started."""
        return self._response("queued", [], None)

    def response(self, outcome: Outcome) -> dict[str, Any]:
        """Return the whole response."""
        finished = outcome.finished
        if outcome.choices[0].reasoning:
            self._add_item("reasoning", None).texts.append(outcome.choices[0].reasoning)
        if outcome.text or not outcome.tool_calls:
            item = self._add_item("message", None)
            item.texts.append(outcome.text)
            item.logprobs += outcome.logprobs
        for index, call in enumerate(outcome.tool_calls):
            item = self._add_item("function_call", ToolCallDelta(index=index, id=call.id, name=call.name))
            item.texts.append(call.arguments)
        status = _status_of(finished)
        output = [item.to_object("completed") for item in self._items[:-1]] + [self._items[-1].to_object(status)]
        return self._response(status, output, finished.usage)

    def begin(self, _started: Started) -> bytes:
        self._has_begun = True
        response = self._response("in_progress", [], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def text(self, text: str, logprobs: Sequence[TokenLogprob], _choice: int = 0) -> bytes:
        item, frames = self._open("message", None)
        item.texts.append(text)
        item.logprobs += logprobs
        shown = envelope.encode(logprobs_object(logprobs)["content"]) if logprobs else b"[]"
        return frames + self._delta(item, text, b',"logprobs":' + shown)

    def reasoning(self, text: str, _choice: int = 0) -> bytes:
        item, frames = self._open("reasoning", None)
        item.texts.append(text)
        return frames + self._delta(item, text)

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        item, frames = self._open("function_call", delta)
        if not delta.arguments:
            return frames
        item.texts.append(delta.arguments)
        return frames + self._delta(item, delta.arguments)

    def end(self, finished: Finished) -> bytes:
        status = _status_of(finished)
        frames = b"" if self._items else self._open("message", None)[1]
        frames += self._close(status)
        return frames + self._event(f"response.{status}", response=self._response(status, self._done, finished.usage))

    def error(self, refusal: Refusal) -> bytes:
        self._number += 1
        return error_event(refusal, self._number - 1)

    def _response(self, status: Status, output: Sequence[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self._head | {
            "status": status,
            "incomplete_details": details,
            "output": list(output),
            "usage": None if usage is None else _usage(usage),
        }

    def _add_item(self, kind: Kind, call: ToolCallDelta | None) -> _Item:
        """Append a new item to the output."""
        index = len(self._items)
        item_id = f"{_PREFIXES[kind]}_{self._suffix}{index:02x}"
        name, position = _DELTAS[kind]
        head = b'event: response.%s.delta\ndata: {"type":"response.%s.delta"' % (name, name)
        head += b',"item_id":%s,"output_index":%d%s,"delta":' % (envelope.encode(item_id), index, position)
        self._items.append(_Item(index, item_id, kind, call, head))
        return self._items[-1]

    def _open(self, kind: Kind, delta: ToolCallDelta | None) -> tuple[_Item, bytes]:
        """Return the item that a piece belongs to, and the frames that close the previous item and open this one."""
        item = self._items[-1] if self._items else None
        if item is not None and _belongs_to(item, kind, delta):
            return item, b""
        frames = self._close("completed") if self._has_begun else self.begin(Started())
        item = self._add_item(kind, delta)
        frames += self._event(
            "response.output_item.added", output_index=item.index, item=item.to_object("in_progress", is_empty=True)
        )
        if kind == "message":
            frames += self._event("response.content_part.added", **_position(item), part=item.part)
        return item, frames

    def _close(self, status: Status) -> bytes:
        """Return the frames that end the open item, if any."""
        if len(self._items) == len(self._done):
            return b""
        item = self._items[-1]
        position: dict[str, Any] = {"item_id": item.id, "output_index": item.index}
        if item.call is not None:
            frames = self._event(
                "response.function_call_arguments.done", **position, name=item.call.name, arguments=item.text
            )
        elif item.kind == "reasoning":
            frames = self._event("response.reasoning_text.done", **_position(item), text=item.text)
        else:
            part = item.part
            frames = self._event(
                "response.output_text.done", **_position(item), text=item.text, logprobs=part["logprobs"]
            )
            frames += self._event("response.content_part.done", **_position(item), part=part)
        self._done.append(item.to_object(status))
        return frames + self._event("response.output_item.done", output_index=item.index, item=self._done[-1])

    def _delta(self, item: _Item, text: str, fields: bytes = b"") -> bytes:
        self._number += 1
        return item.delta + envelope.encode(text) + fields + b',"sequence_number":%d}\n\n' % (self._number - 1)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + envelope.encode(event) + b"\n\n"


def error_event(refusal: Refusal, number: int = 0) -> bytes:
    """Return the last event of a broken stream."""
    error = envelope.openai_error(refusal)
    event = {"type": "error", "sequence_number": number, "code": str(error["code"]), "message": error["message"]}
    return b"event: error\ndata: " + envelope.encode(event | {"param": None, "error": error}) + b"\n\n"


def _belongs_to(item: _Item, kind: Kind, delta: ToolCallDelta | None) -> bool:
    return item.kind == kind and (delta is None or item.call is None or item.call.index == delta.index)


def _position(item: _Item) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": item.index, "content_index": 0}


def _status_of(finished: Finished) -> Status:
    return "incomplete" if finished.reason == "length" else "completed"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
