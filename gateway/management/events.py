"""`/events`: server-sent events with changes as they happen: nodes, finished calls, jobs and publications.

A caller gets only what the same credential can read from the corresponding routes. The credential is verified again
every VERIFY_S seconds, and the stream ends when it is no longer valid.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct
from starlette.responses import Response

from catalog import publications
from gateway import authentication
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange, Receive, Scope, Send
from gateway.live.call_feed import EVERY_ACCOUNT
from gateway.live.event_hub import EventStream, Source, TooManyStreams, frame
from gateway.live.node_changes import node_changes
from gateway.live.row_changes import HasId, row_changes
from gateway.management.batches import render_batch
from gateway.management.endpoint import ManagementRequest, invalid_query, takes_query
from gateway.management.publications import render_publication
from gateway.management.usage import render_call
from gateway.openapi.operation import describe
from gateway.services import Services
from storage.errors import StoreError
from tenants.credentials.principal import Principal
from tenants.jobs import batches
from tenants.usage import usage_entries
from tenants.usage.usage_sums import Filter

Topic = Literal["nodes", "calls", "jobs", "publications"]
TOPICS: tuple[Topic, ...] = get_args(Topic)
_PLATFORM_TOPICS = frozenset({"nodes", "publications"})

KEEPALIVE_S = 15.0
VERIFY_S = 5.0
MAX_REPLAYED_CALLS = 100
MAX_ROWS = 100  # newest batches and publications whose changes are events
_OPENING = b"retry: 2000\n: open\n\n"
_COMMENT = b": keep-alive\n\n"
_DESCRIPTION = (
    "Server-sent events. The data of each event is a list: changed nodes (`event: nodes`), finished calls (`calls`), "
    "changed batches (`jobs`) or changed publications (`publications`). A comment is sent every 15 seconds."
)

Verify = Callable[[], Awaitable[object]]


class EventsQuery(Struct, frozen=True, kw_only=True):
    """Query parameters of the events. Without `account_id`, events of all accounts, which needs a platform role.
    `topics` are comma-separated; by default, all that the caller may read."""

    account_id: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
    topics: Annotated[str, Meta(max_length=100)] = ""


@describe(content={"text/event-stream": {"schema": {"type": "string", "description": _DESCRIPTION}}})
@takes_query(EventsQuery)
async def stream(services: Services, request: ManagementRequest, query: EventsQuery) -> Response:
    """Follow changes as server-sent events. Read the corresponding list first; events carry only what changes. After a
    lost connection, `Last-Event-ID` repeats the calls that finished meanwhile."""
    _authorize(request.principal, query.account_id)
    topics = _topics(query.topics, request.principal)
    if request.method == "HEAD":
        return Response(media_type="text/event-stream")
    account_id = query.account_id or EVERY_ACCOUNT
    sources = [
        (topic, "" if topic in _PLATFORM_TOPICS else account_id, _source(services, topic, account_id))
        for topic in topics
    ]
    replay = await _missed_calls(services, request, query.account_id) if "calls" in topics else b""

    async def verify() -> None:
        principal = await request.authorize_again()
        _authorize(principal, query.account_id)
        _check_topics(topics, principal)

    try:
        opened = services.event_hub.open(request.principal.party, sources)
    except TooManyStreams:
        raise Refusal(Reason.OUT_OF_CAPACITY) from None
    close = functools.partial(services.event_hub.close_stream, opened)
    return _EventResponse(request.exchange, opened, _OPENING + replay, verify, close)


def _authorize(principal: Principal, account_id: str) -> None:
    """Raise Refusal unless the caller may read the account, or all accounts for ""."""
    if account_id:
        authentication.authorize(principal, account_id, "account:read")
    else:
        authentication.authorize_platform(principal, "platform:read")


def _topics(text: str, principal: Principal) -> tuple[Topic, ...]:
    """Return the requested topics, or all that the caller may read. Raises Refusal."""
    if not text:
        return tuple(
            topic for topic in TOPICS if topic not in _PLATFORM_TOPICS or authentication.has_platform_role(principal)
        )
    names = {name.strip() for name in text.split(",")}
    if not names.issubset(TOPICS):
        raise invalid_query("topics", f"must be a comma-separated list of {', '.join(TOPICS)}")
    topics = tuple(topic for topic in TOPICS if topic in names)
    _check_topics(topics, principal)
    return topics


def _check_topics(topics: tuple[Topic, ...], principal: Principal) -> None:
    """Raise Refusal if a topic needs a platform role that the caller does not have."""
    if not _PLATFORM_TOPICS.isdisjoint(topics):
        authentication.authorize_platform(principal, "platform:read")


def _source(services: Services, topic: Topic, account_id: str) -> Source:
    if topic == "nodes":
        return functools.partial(node_changes, services.fleet)
    if topic == "calls":
        return functools.partial(_calls, services, account_id)
    read = _read_publications if topic == "publications" else _read_jobs
    return functools.partial(row_changes, functools.partial(read, services, account_id))


async def _read_jobs(services: Services, account_id: str) -> Sequence[HasId]:
    """Return the newest batches of an account, or of all."""
    of = None if account_id == EVERY_ACCOUNT else account_id
    found, _ = await batches.list_records(services.database, of, services.clock.now(), MAX_ROWS)
    return [render_batch(each) for each in found]


async def _read_publications(services: Services, _account_id: str) -> Sequence[HasId]:
    found, _ = await publications.list_all(services.database, MAX_ROWS)
    return [render_publication(each) for each in found]


async def _calls(services: Services, account_id: str) -> AsyncIterator[list[dict[str, Any]]]:
    async for entries in services.call_feed.calls(account_id):
        yield [render_call(entry) for entry in entries]


async def _missed_calls(services: Services, request: ManagementRequest, account_id: str) -> bytes:
    """Return the newest calls that started after the call in `Last-Event-ID`, as one event; b"" without the header."""
    last_id = request.headers.get("last-event-id", "")[:64]
    if not last_id or "\0" in last_id:
        return b""
    newest = await usage_entries.list_recent(services.database, Filter(account_id or None), MAX_REPLAYED_CALLS)
    missed = [render_call(entry) for entry in reversed(newest) if entry.request_id > last_id]
    return frame("calls", missed) if missed else b""


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


class _EventResponse(Response):
    """Sends a stream of events until the client disconnects, reads too slowly, or loses its access."""

    def __init__(
        self,
        exchange: Exchange,
        events: EventStream,
        opening: bytes,
        verify: Verify,
        close: Callable[[], None],
    ) -> None:
        super().__init__()
        self._exchange = exchange
        self._events = events
        self._opening = opening
        self._verify = verify
        self._close = close

    async def __call__(self, _scope: Scope, _receive: Receive, _send: Send) -> None:
        sending = asyncio.create_task(self._send_all())
        self._exchange.on_disconnect(lambda: _cancel(sending))
        try:
            await asyncio.wait({sending})
            if not sending.cancelled():
                sending.result()
        finally:
            sending.cancel()
            self._exchange.on_disconnect(None)
            self._close()

    async def _send_all(self) -> None:
        exchange, loop = self._exchange, asyncio.get_running_loop()
        await exchange.start_stream()
        await exchange.write(self._opening)
        written_s = verified_s = loop.time()
        while not self._events.is_over:
            data = await self._events.take(VERIFY_S)
            now_s = loop.time()
            if now_s - verified_s >= VERIFY_S:
                verified_s = now_s
                if not await self._is_still_permitted():
                    break
            if data or now_s - written_s >= KEEPALIVE_S:
                await exchange.write(data or _COMMENT)
                written_s = now_s
        await exchange.end_stream()

    async def _is_still_permitted(self) -> bool:
        try:
            await self._verify()
        except (Refusal, StoreError):
            return False
        return True
