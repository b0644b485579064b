"""What earlier responses said, so that a later one can go on from there, and each be told again: kept for a while, in
Redis.

Turns and responses are compressed, and encrypted under a key of the account's that no store holds; where they lie tells
nothing. A response that is not kept any more, or never was, is unknown. Knows turns and events, not HTTP.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from engine.protocol.events import Event, Finished
from engine.protocol.fields import BadInput
from engine.protocol.outcome import Outcome
from engine.protocol.tasks import ChatMessage
from gateway.call import Asked, Record
from gateway.sealed import Sealer
from storage.errors import StoreUnavailable

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20  # of one thread, compressed
MAX_TURNS_BYTES = 64 << 20  # of one thread, before

_What = Literal["turns", "record"]
_KINDS: dict[_What, str] = {"turns": "", "record": "/record"}  # and what sets their names apart
_Kept = TypeVar("_Kept")


class Store(Protocol):
    """What is asked of Redis."""

    async def get(self, key: str) -> bytes | None: ...
    async def set(self, key: str, value: bytes, ttl_s: float) -> None: ...
    async def delete(self, key: str) -> None: ...


class Source(Protocol):
    """The events of a call."""

    @property
    def micro_neurons(self) -> int: ...
    async def take(self, not_before_s: float = 0.0) -> list[Event]: ...


class Threads:
    """The threads of all accounts. `ttl_s` 0 keeps none."""

    def __init__(self, store: Store, secret: bytes, ttl_s: float) -> None:
        self._store = store
        self._sealer = Sealer(secret, "responses")
        self._ttl_s = ttl_s

    async def go_on(
        self, asked: Asked, account_id: str, *, may_read: bool = True
    ) -> tuple[Asked, tuple[ChatMessage, ...]]:
        """What is asked, with the turns of the response that it names in front; and all turns but the instructions.
        Raises BadInput when that response is not known, StoreUnavailable when that cannot be told."""
        request = asked.thread
        assert request is not None
        if request.previous_id is None:
            return asked, request.turns
        if not may_read:
            raise BadInput("'/previous_response_id' is not supported: nothing of this account's responses is kept")
        earlier = await self._read(account_id, request.previous_id)
        task = request.with_earlier(earlier)
        return dataclasses.replace(asked, task=task), (*earlier, *request.turns)

    async def _read(self, account_id: str, response_id: str) -> tuple[ChatMessage, ...]:
        if not self._ttl_s:
            raise BadInput("'/previous_response_id' is not supported: responses are not kept here")
        turns = await self._open("turns", account_id, response_id, tuple[ChatMessage, ...])
        if turns is None:
            raise BadInput("'/previous_response_id' names no response that is kept")
        return turns

    async def find(self, account_id: str, response_id: str) -> Record | None:
        """What a response was, while it is kept. Raises StoreUnavailable."""
        return await self._open("record", account_id, response_id, Record) if self._ttl_s else None

    async def keep(self, account_id: str, response_id: str, turns: tuple[ChatMessage, ...], record: Record) -> None:
        """Keep all turns up to a response's own, and what it was. What cannot be kept is not: the answer goes out all
        the same."""
        if not self._ttl_s:
            return
        try:
            await self._seal("turns", account_id, response_id, turns)
            await self._seal("record", account_id, response_id, record)
        except StoreUnavailable:
            log.warning("a response could not be kept")

    async def forget(self, account_id: str, response_id: str) -> None:
        """Keep nothing of a response any more. Raises StoreUnavailable."""
        for what in _KINDS:
            await self._store.delete(self._place(what, account_id, response_id))

    async def _seal(self, what: _What, account_id: str, response_id: str, value: object) -> None:
        sealed = self._sealer.seal(account_id, msgspec.msgpack.encode(value))
        if len(sealed) <= MAX_BYTES:
            await self._store.set(self._place(what, account_id, response_id), sealed, self._ttl_s)

    async def _open(self, what: _What, account_id: str, response_id: str, kind: type[_Kept]) -> _Kept | None:
        sealed = await self._store.get(self._place(what, account_id, response_id))
        try:
            if sealed is not None:
                return msgspec.msgpack.decode(self._sealer.open(account_id, sealed, MAX_TURNS_BYTES), type=kind)
        except (ValueError, msgspec.MsgspecError):
            log.warning("a kept response cannot be read")
        return None

    def _place(self, what: _What, account_id: str, response_id: str) -> str:
        return "response:" + self._sealer.hash_of(account_id, response_id + _KINDS[what])


class ThreadOf(NamedTuple):
    """Where a response is kept."""

    threads: Threads
    account_id: str
    response_id: str


class KeptEvents:
    """The events of a call whose answer joins a thread: kept before its last event is handed on, so that whoever has
    the answer can go on from it. `make_record` tells the whole response."""

    def __init__(
        self,
        source: Source,
        thread: ThreadOf,
        turns: tuple[ChatMessage, ...],
        make_record: Callable[[Outcome], Record],
    ) -> None:
        self._source = source
        self._thread = thread
        self._turns = turns
        self._make_record = make_record
        self._outcome = Outcome()

    @property
    def micro_neurons(self) -> int:
        return self._source.micro_neurons

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """As the source's."""
        events = await self._source.take(not_before_s)
        for event in events:
            self._outcome.add(event)
        if isinstance(self._outcome.end, Finished):
            said = self._outcome.choices[0]
            answer = ChatMessage("assistant", said.text, tool_calls=said.tool_calls, reasoning=said.reasoning)
            threads, account_id, response_id = self._thread
            record = self._make_record(self._outcome)
            await threads.keep(account_id, response_id, (*self._turns, answer), record)
        return events
