"""Stored responses of the Responses API, with the conversation before each, so that a later request can continue from
it and clients can retrieve it.

Content is compressed and encrypted with a key of the account that no store holds. Rows that arrive during a transaction
are written together in the next one. Expired responses count as unknown. Knows messages and events, not HTTP.
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
from engine.protocol.responses import response_id_of_item
from engine.protocol.tools import ToolCall
from gateway.call import ParsedRequest, StoredRecord
from gateway.jobs.sealed_content import Sealer
from storage.database import Database
from storage.errors import StoreError, StoreUnavailable
from storage.waiters import complete
from telemetry.clock import Clock
from tenants.jobs import responses
from tenants.jobs.responses import ResponseRow

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20  # limit for one compressed conversation
MAX_INFLATED_BYTES = 64 << 20
MAX_REFERENCED = 64  # responses whose items one input may reference
EXPIRE_INTERVAL_S = 60.0

T = TypeVar("T")


class Source(Protocol):
    """The events of a call."""

    @property
    def micro_neurons(self) -> int: ...
    async def take(self, not_before_s: float = 0.0) -> list[Event]: ...


class StoredResponses:
    """The stored responses of all accounts. `ttl_s` 0 disables storage. Create it inside the event loop."""

    def __init__(self, database: Database, secret: bytes, ttl_s: float, clock: Clock) -> None:
        self._database = database
        self._sealer = Sealer(secret, "responses")
        self._ttl_s = ttl_s
        self._clock = clock
        self._unwritten: list[tuple[ResponseRow, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_enabled(self) -> bool:
        return self._ttl_s > 0

    async def run(self) -> None:
        """Delete expired responses, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_S)
            with contextlib.suppress(StoreUnavailable):
                while await responses.expire(self._database, self._clock.now()):
                    pass

    async def resume(
        self, parsed: ParsedRequest, account_id: str, *, may_read: bool = True
    ) -> tuple[ParsedRequest, tuple[ChatMessage, ...]]:
        """Return the request with referenced items filled in and earlier messages in front, and all messages but the
        instructions. Raises BadInput for unknown items or responses, StoreUnavailable."""
        request = parsed.response_request
        assert request is not None
        if request.references:
            if not (may_read and self.is_enabled):
                raise BadInput("'/input' references items by id, but no responses are stored: send whole items")
            request = request.with_items(await self._items(account_id, request.references))
            parsed = structs.replace(parsed, task=request.with_earlier(()), response_request=request)
        if request.previous_id is None:
            return parsed, request.messages
        if not may_read:
            raise BadInput("'/previous_response_id' is not supported: this account has zero data retention")
        earlier = await self._read(account_id, request.previous_id)
        task = request.with_earlier(earlier)
        return structs.replace(parsed, task=task), (*earlier, *request.messages)

    async def _read(self, account_id: str, response_id: str) -> tuple[ChatMessage, ...]:
        if not self.is_enabled:
            raise BadInput("'/previous_response_id' is not supported: this platform does not store responses")
        row = await responses.find(self._database, account_id, response_id, self._clock.now())
        if row is not None and row.turns is None:
            raise BadInput("'/previous_response_id' names a response that is not finished, or too long to continue")
        messages = None if row is None else self._decrypt(account_id, row.turns, tuple[ChatMessage, ...])
        if messages is None:
            raise BadInput("'/previous_response_id' names no stored response")
        return messages

    async def _items(self, account_id: str, item_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the stored items with these ids, by id. Raises BadInput, StoreUnavailable."""
        response_ids = dict.fromkeys(map(response_id_of_item, item_ids))
        if len(response_ids) > MAX_REFERENCED:
            raise BadInput(f"'/input' must not reference items of more than {MAX_REFERENCED} responses")
        wanted = set(item_ids)
        items: dict[str, dict[str, Any]] = {}
        for response_id in response_ids:
            record = await self.find(account_id, response_id)
            if record is not None:
                all_items = [*msgspec.json.decode(record.input_items), *msgspec.json.decode(record.response)["output"]]
                own = [
                    item
                    for item in all_items
                    if item["id"] in wanted and response_id_of_item(item["id"]) == response_id
                ]
                items |= {item["id"]: item for item in own if item["type"] != "item_reference"}
        return items

    async def find(self, account_id: str, response_id: str) -> StoredRecord | None:
        """Return a stored response; None if there is none. Raises StoreUnavailable."""
        row = await responses.find(self._database, account_id, response_id, self._clock.now())
        return None if row is None else self._decrypt(account_id, row.record, StoredRecord)

    async def store(
        self, account_id: str, response_id: str, messages: tuple[ChatMessage, ...], record: StoredRecord
    ) -> None:
        """Store a response and the whole conversation including it. A failure is logged: the response is sent
        nevertheless."""
        if not self.is_enabled:
            return
        try:
            await self._store(account_id, response_id, messages, record, self._ttl_s)
        except StoreError:
            log.warning("response was not stored: the database is unavailable")

    async def store_queued(self, account_id: str, response_id: str, record: StoredRecord, wait_s: float) -> None:
        """Store a background response that will run within `wait_s` seconds. Raises StoreError."""
        await self._store(account_id, response_id, None, record, wait_s + self._ttl_s)

    async def delete(self, account_id: str, response_id: str) -> None:
        """Delete a stored response. Raises StoreUnavailable."""
        await responses.remove(self._database, account_id, response_id)

    async def _store(
        self,
        account_id: str,
        response_id: str,
        messages: tuple[ChatMessage, ...] | None,
        record: StoredRecord,
        ttl_s: float,
    ) -> None:
        sealed = self._encrypt(account_id, record)
        if sealed is None:
            return
        expires_at = self._clock.now() + timedelta(seconds=ttl_s)
        sealed_messages = None if messages is None else self._encrypt(account_id, messages)
        await self._write(ResponseRow(response_id, account_id, expires_at, sealed, sealed_messages))

    def _encrypt(self, account_id: str, value: object) -> bytes | None:
        """Return the encrypted value; None if it is too long to be stored."""
        sealed = self._sealer.seal(account_id, msgspec.msgpack.encode(value))
        return sealed if len(sealed) <= MAX_BYTES else None

    def _decrypt(self, account_id: str, sealed: bytes | None, kind: type[T]) -> T | None:
        try:
            if sealed is not None:
                return msgspec.msgpack.decode(self._sealer.open(account_id, sealed, MAX_INFLATED_BYTES), type=kind)
        except (ValueError, msgspec.MsgspecError):
            log.warning("stored response is unreadable")
        return None

    async def _write(self, row: ResponseRow) -> None:
        """Return after the row is committed. Raises StoreError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwritten.append((row, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        await done

    async def _write_all(self) -> None:
        while self._unwritten:
            rows, self._unwritten = self._unwritten, []
            error: Exception | None = None
            try:
                await responses.keep(self._database, [row for row, _ in rows])
            except StoreError as failed:
                error = failed
            except Exception as failed:
                log.exception("responses were not stored")
                error = StoreUnavailable(type(failed).__name__)
            for _, done in rows:
                complete(done, None, error)
        self._writing = None


class StoredResponseEvents:
    """The events of a call whose response is stored. The response is stored before its last event is passed on, so that
    a client that has the response can continue from it. `make_record` returns the record of an outcome."""

    def __init__(
        self,
        source: Source,
        store: Callable[[tuple[ChatMessage, ...], StoredRecord], Awaitable[None]],
        messages: tuple[ChatMessage, ...],
        make_record: Callable[[Outcome], StoredRecord],
    ) -> None:
        self._source = source
        self._store = store
        self._messages = messages
        self._make_record = make_record
        self._outcome = Outcome()

    @property
    def micro_neurons(self) -> int:
        return self._source.micro_neurons

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """Return the next events of the source."""
        events = await self._source.take(not_before_s)
        for event in events:
            self._outcome.add(event)
        if isinstance(self._outcome.end, Finished):
            choice = self._outcome.choices[0]
            # Tool calls that were cut off cannot be rendered by a template.
            calls = tuple(call for call in choice.tool_calls if _is_complete(call))
            message = ChatMessage("assistant", choice.text, tool_calls=calls, reasoning=choice.reasoning)
            await self._store((*self._messages, message), self._make_record(self._outcome))
        return events


def _is_complete(call: ToolCall) -> bool:
    """Return True if the arguments of a tool call were not cut off by the token limit."""
    try:
        return isinstance(msgspec.json.decode(call.arguments), dict)
    except (msgspec.MsgspecError, RecursionError):
        return False
