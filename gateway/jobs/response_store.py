"""What earlier responses said, so that a later one can go on from there, and each be told again: kept for a while, as
rows.

Turns and responses are compressed, and encrypted under a key of the account's that no store holds. Rows that are to be
written while others are go together in the next transaction. A response that is not kept any more, or never was, is
unknown. Knows turns and events, not HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import structs

from engine.protocol.events import Event, Finished
from engine.protocol.fields import BadInput
from engine.protocol.messages import ChatMessage
from engine.protocol.outcome import Outcome
from engine.protocol.responses import response_of
from engine.protocol.tools import ToolCall
from gateway.call import Asked, Record
from gateway.jobs.sealed_content import Sealer
from storage.database import Database
from storage.errors import StoreError, StoreUnavailable
from storage.waiters import tell
from telemetry.clock import Clock
from tenants.jobs import responses
from tenants.jobs.responses import Kept

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20  # of one thread, compressed
MAX_TURNS_BYTES = 64 << 20  # of one thread, before
MAX_REFERRED = 64  # responses whose items one input names
EXPIRE_INTERVAL_S = 60.0

_What = TypeVar("_What")


class Source(Protocol):
    """The events of a call."""

    @property
    def micro_neurons(self) -> int: ...
    async def take(self, not_before_s: float = 0.0) -> list[Event]: ...


class KeptResponses:
    """Those of all accounts. `ttl_s` 0 keeps none. Made within its event loop; `run` runs for ever."""

    def __init__(self, database: Database, secret: bytes, ttl_s: float, clock: Clock) -> None:
        self._database = database
        self._sealer = Sealer(secret, "responses")
        self._ttl_s = ttl_s
        self._clock = clock
        self._unwritten: list[tuple[Kept, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    @property
    def keeps_any(self) -> bool:
        return self._ttl_s > 0

    async def run(self) -> None:
        """Let go of what was kept for long enough, for ever."""
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_S)
            with contextlib.suppress(StoreUnavailable):
                while await responses.expire(self._database, self._clock.now()):
                    pass

    async def go_on(
        self, asked: Asked, account_id: str, *, may_read: bool = True
    ) -> tuple[Asked, tuple[ChatMessage, ...]]:
        """What is asked, with the items that it names in their places and the turns of the response that it names in
        front; and all turns but the instructions. Raises BadInput when one is not known, StoreUnavailable when that
        cannot be told."""
        request = asked.thread
        assert request is not None
        if request.references:
            if not (may_read and self.keeps_any):
                raise BadInput("'/input' names items by their ids, and none are kept: send them whole")
            request = request.with_items(await self._items(account_id, request.references))
            asked = structs.replace(asked, task=request.with_earlier(()), thread=request)
        if request.previous_id is None:
            return asked, request.turns
        if not may_read:
            raise BadInput("'/previous_response_id' is not supported: nothing of this account's responses is kept")
        earlier = await self._read(account_id, request.previous_id)
        task = request.with_earlier(earlier)
        return structs.replace(asked, task=task), (*earlier, *request.turns)

    async def _read(self, account_id: str, response_id: str) -> tuple[ChatMessage, ...]:
        if not self.keeps_any:
            raise BadInput("'/previous_response_id' is not supported: responses are not kept here")
        kept = await responses.find(self._database, account_id, response_id, self._clock.now())
        if kept is not None and kept.turns is None:
            raise BadInput("'/previous_response_id' names a response that is not finished, or too long to go on from")
        turns = None if kept is None else self._opened(account_id, kept.turns, tuple[ChatMessage, ...])
        if turns is None:
            raise BadInput("'/previous_response_id' names no response that is kept")
        return turns

    async def _items(self, account_id: str, item_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The items with these ids, those that are kept. Raises BadInput, StoreUnavailable."""
        response_ids = dict.fromkeys(map(response_of, item_ids))
        if len(response_ids) > MAX_REFERRED:
            raise BadInput(f"'/input' must not name items of more than {MAX_REFERRED} responses")
        wanted = set(item_ids)
        items: dict[str, dict[str, Any]] = {}
        for response_id in response_ids:
            record = await self.find(account_id, response_id)
            if record is not None:
                told = [*msgspec.json.decode(record.input_items), *msgspec.json.decode(record.response)["output"]]
                own = [item for item in told if item["id"] in wanted and response_of(item["id"]) == response_id]
                items |= {item["id"]: item for item in own if item["type"] != "item_reference"}
        return items

    async def find(self, account_id: str, response_id: str) -> Record | None:
        """What a response was, while it is kept. Raises StoreUnavailable."""
        kept = await responses.find(self._database, account_id, response_id, self._clock.now())
        return None if kept is None else self._opened(account_id, kept.record, Record)

    async def keep(self, account_id: str, response_id: str, turns: tuple[ChatMessage, ...], record: Record) -> None:
        """Keep all turns up to a response's own, and what it was. What cannot be kept is not: the answer goes out all
        the same."""
        if not self.keeps_any:
            return
        try:
            await self._keep(account_id, response_id, turns, record, self._ttl_s)
        except StoreError:
            log.warning("a response could not be kept")

    async def begin(self, account_id: str, response_id: str, record: Record, wait_s: float) -> None:
        """Keep what is known of a response that is to be run within `wait_s`. Raises StoreError."""
        await self._keep(account_id, response_id, None, record, wait_s + self._ttl_s)

    async def forget(self, account_id: str, response_id: str) -> None:
        """Keep nothing of a response any more. Raises StoreUnavailable."""
        await responses.remove(self._database, account_id, response_id)

    async def _keep(
        self, account_id: str, response_id: str, turns: tuple[ChatMessage, ...] | None, record: Record, ttl_s: float
    ) -> None:
        sealed = self._sealed(account_id, record)
        if sealed is None:
            return
        expires_at = self._clock.now() + timedelta(seconds=ttl_s)
        sealed_turns = None if turns is None else self._sealed(account_id, turns)
        await self._write(Kept(response_id, account_id, expires_at, sealed, sealed_turns))

    def _sealed(self, account_id: str, value: object) -> bytes | None:
        """None for what is too long to be kept."""
        sealed = self._sealer.seal(account_id, msgspec.msgpack.encode(value))
        return sealed if len(sealed) <= MAX_BYTES else None

    def _opened(self, account_id: str, sealed: bytes | None, kind: type[_What]) -> _What | None:
        try:
            if sealed is not None:
                return msgspec.msgpack.decode(self._sealer.open(account_id, sealed, MAX_TURNS_BYTES), type=kind)
        except (ValueError, msgspec.MsgspecError):
            log.warning("a kept response cannot be read")
        return None

    async def _write(self, kept: Kept) -> None:
        """Returns when the row is there. Raises StoreError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwritten.append((kept, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        await done

    async def _write_all(self) -> None:
        while self._unwritten:
            rows, self._unwritten = self._unwritten, []
            error: Exception | None = None
            try:
                await responses.keep(self._database, [kept for kept, _ in rows])
            except StoreError as failed:
                error = failed
            except Exception as failed:
                log.exception("responses cannot be written")
                error = StoreUnavailable(type(failed).__name__)
            for _, done in rows:
                tell(done, None, error)
        self._writing = None


class KeptEvents:
    """The events of a call whose answer joins a thread: kept before its last event is handed on, so that whoever has
    the answer can go on from it. `keep` keeps it under its account and id; `make_record` tells the whole response."""

    def __init__(
        self,
        source: Source,
        keep: Callable[[tuple[ChatMessage, ...], Record], Awaitable[None]],
        turns: tuple[ChatMessage, ...],
        make_record: Callable[[Outcome], Record],
    ) -> None:
        self._source = source
        self._keep = keep
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
            whole = tuple(call for call in said.tool_calls if _is_whole(call))  # no other can be shown or answered
            answer = ChatMessage("assistant", said.text, tool_calls=whole, reasoning=said.reasoning)
            await self._keep((*self._turns, answer), self._make_record(self._outcome))
        return events


def _is_whole(call: ToolCall) -> bool:
    """Whether its arguments came to their end before the token limit."""
    try:
        return isinstance(msgspec.json.decode(call.arguments), dict)
    except (msgspec.MsgspecError, RecursionError):
        return False
