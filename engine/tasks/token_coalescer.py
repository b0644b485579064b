"""Token coalescing: hold the tokens of a stream for a short time, so that several are processed and sent together.

The first token is sent at once, and so is a token that arrives `max_wait_s` or more after the previous send, together
with those held until then. No token is held longer than `max_wait_s`. The owner of a stream flushes before the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Generic, TypeVar

from engine.protocol.events import Token, ToolCallDelta

DEFAULT_COALESCE_MS = 25
MAX_COALESCE_MS = 1000
_TIMER_RESOLUTION_S = 0.001  # uvloop's timers and clock have whole milliseconds

Piece = Token | ToolCallDelta
Item = TypeVar("Item")


class TokenCoalescer:
    """Opens streams, which share one timer. Belongs to one event loop."""

    def __init__(self, max_wait_s: float) -> None:
        """`max_wait_s` is the longest time for which a token is held; 0 sends every token at once."""
        self.max_wait_s = max_wait_s
        self._due_s: dict[CoalescedStream[Any], float] = {}  # stream with held tokens -> due time, in ascending order
        self._timer: asyncio.TimerHandle | None = None

    def open(self, process: Callable[[list[Item]], None]) -> CoalescedStream[Item]:
        """Return a stream whose items are passed to `process`, which must not raise."""
        return CoalescedStream(self, asyncio.get_running_loop(), process)

    def hold(self, stream: CoalescedStream[Any], due_s: float) -> None:
        """Flush a stream at `due_s`, unless it is released before."""
        self._due_s[stream] = due_s
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._flush_due)

    def release(self, stream: CoalescedStream[Any]) -> None:
        """Forget a stream that holds nothing."""
        self._due_s.pop(stream, None)

    def _flush_due(self) -> None:
        """Called by the timer. The timer is not cancelled when a stream is released, so it may find nothing due."""
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + _TIMER_RESOLUTION_S
        due = [stream for stream, due_s in self._due_s.items() if due_s <= limit_s]
        for stream in due:
            stream.flush()
        next_s = next(iter(self._due_s.values()), None)
        self._timer = None if next_s is None else loop.call_at(next_s, self._flush_due)


class CoalescedStream(Generic[Item]):
    """The items of one stream: outputs of a sequence or pieces of a response."""

    __slots__ = ("_coalescer", "_held", "_loop", "_max_wait_s", "_next_send_s", "_process")

    def __init__(
        self, coalescer: TokenCoalescer, loop: asyncio.AbstractEventLoop, process: Callable[[list[Item]], None]
    ) -> None:
        self._coalescer = coalescer
        self._loop = loop
        self._process = process
        self._max_wait_s = coalescer.max_wait_s
        self._next_send_s = 0.0  # time from which an item is processed at once
        self._held: list[Item] = []

    def add(self, item: Item) -> None:
        """Process an item now, with those that are held, or hold it."""
        now_s = self._loop.time()
        if now_s >= self._next_send_s:
            self._next_send_s = now_s + self._max_wait_s
            self._process([*self.take(), item])
            return
        if not self._held:
            self._coalescer.hold(self, now_s + self._max_wait_s)
        self._held.append(item)

    def flush(self) -> None:
        """Process the items that are held."""
        if self._held:
            self._next_send_s = self._loop.time() + self._max_wait_s
            self._process(self.take())

    def take(self) -> list[Item]:
        """Return the items that are held, which are then no longer held."""
        held = self._held
        if held:
            self._held = []
            self._coalescer.release(self)
        return held

    def send_next_at_once(self) -> None:
        """Do not hold the next item: nothing was sent for those before."""
        self._next_send_s = 0.0


def join_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """Join adjacent pieces of one kind: text, reasoning, or arguments of one tool call. The first piece of a tool call
    stays alone. Text, token counts and log probabilities do not change. All pieces are of one choice."""
    return [_joined(list(group)) for _, group in groupby(pieces, _kind_of)]


def _kind_of(piece: Piece) -> tuple[int, bool | str | None]:
    """Return a value that is equal for pieces that can be joined. The first piece of a tool call has the call's id."""
    return (-1, piece.is_reasoning) if isinstance(piece, Token) else (piece.index, piece.id)


def _joined(pieces: list[Piece]) -> Piece:
    """Return pieces of one kind as one."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    num_tokens = sum([piece.num_tokens for piece in pieces])
    if isinstance(first, ToolCallDelta):
        arguments = "".join([piece.arguments for piece in pieces])  # type: ignore[union-attr]  # all of one kind
        return ToolCallDelta(index=first.index, arguments=arguments, num_tokens=num_tokens, choice=first.choice)
    text = "".join([piece.text for piece in pieces])  # type: ignore[union-attr]  # all of one kind
    logprobs = tuple([each for piece in pieces for each in piece.logprobs])  # type: ignore[union-attr]
    return Token(text, num_tokens, logprobs, first.choice, first.is_reasoning)
