"""One pipelined Redis connection for commands whose reply a call waits for.

Commands of one turn of the event loop leave in one write; replies arrive in order. If the server sends nothing for too
long while a reply is due, the connection is dropped, all waiters get StoreUnavailable, and it is reopened in the
background. Commands are never sent twice. Speaks RESP 2.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from redis.asyncio.connection import parse_url

from storage.errors import StoreUnavailable
from telemetry.coalescing_writer import CoalescingWriter

log = logging.getLogger(__name__)

MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0
OPEN_TIMEOUT_S = 5.0
_GRACE_S = 0.002  # for replies that have arrived but were not read because this process was busy
_MAX_TIMEOUTS = 20  # for one reply, if the server keeps replying to earlier commands
_MOST_UNSENT = (
    16  # commands that wait for the end of the event-loop turn; more are sent at once so that Redis can start
)
_SEVERAL = 4096  # longest line of a reply, in bytes

Reply = int | bytes | None | list[Any] | Exception


class CommandRefused(Exception):
    """An error reply of Redis: `code` is its first word, such as NOSCRIPT or READONLY."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


def packed(*arguments: bytes | str | int) -> bytes:
    """Return arguments in RESP; `command` adds their count."""
    out = []
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


def command(*arguments: bytes | str | int) -> bytes:
    """Return a complete command in RESP."""
    return b"*%d\r\n" % len(arguments) + packed(*arguments)


class ReplyReader:
    """Parse bytes into complete replies. Raises ValueError for anything that is not RESP 2."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[Reply]:
        self._data = self._data + data if self._data else data
        replies: list[Reply] = []
        at = 0
        while at < len(self._data):
            found = self._one(at)
            if found is None:
                break
            reply, at = found
            replies.append(reply)
        self._data = self._data[at:]
        return replies

    def _one(self, at: int) -> tuple[Reply, int] | None:
        """Return the reply at `at` and the position after it; None if it is incomplete."""
        data = self._data
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > _SEVERAL:
                raise ValueError("an answer's line without an end")
            return None
        kind, line = data[at : at + 1], data[at + 1 : end]
        if kind == b"$":
            length = int(line)
            if length < 0:
                return None if length < -1 else (None, end + 2)
            start, stop = end + 2, end + 2 + length
            return (data[start:stop], stop + 2) if len(data) >= stop + 2 else None
        if kind == b":":
            return int(line), end + 2
        if kind == b"+":
            return line, end + 2
        if kind == b"-":
            return CommandRefused(line.decode("utf-8", "replace")), end + 2
        if kind == b"*":
            return self._several(int(line), end + 2)
        raise ValueError("not an answer of Redis")

    def _several(self, count: int, at: int) -> tuple[Reply, int] | None:
        found: list[Any] = []
        for _ in range(count):
            one = self._one(at)
            if one is None:
                return None
            reply, at = one
            found.append(reply)
        return found if count >= 0 else None, at


class _Asked:
    """A waiter for the last of several replies, and the loop's time at which it started."""

    __slots__ = ("future", "num_replies", "since_s")

    def __init__(self, future: asyncio.Future[Reply], num_replies: int, since_s: float) -> None:
        self.future = future
        self.num_replies = num_replies
        self.since_s = since_s


class _Connection(asyncio.Protocol):
    """One connection. `waiting` has the waiters in the order of their replies."""

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._heard_s = 0.0
        self._reader = ReplyReader()
        self._writer = CoalescingWriter(max_pending=_MOST_UNSENT)
        self._timer: asyncio.TimerHandle | None = None
        self.waiting: deque[_Asked] = deque()
        self.is_closed: asyncio.Future[None] = self._loop.create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._writer.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        try:
            replies = self._reader.feed(data)
        except ValueError as error:
            self.drop(str(error))
            return
        for reply in replies:
            if not self.waiting:
                self.drop("an answer that nobody asked for")
                return
            asked = self.waiting[0]
            asked.num_replies -= 1
            if not asked.num_replies:
                self.waiting.popleft()
                if not asked.future.done():
                    asked.future.set_result(reply)

    def send(self, data: bytes, num_replies: int = 1) -> asyncio.Future[Reply]:
        if self.is_closed.done():
            raise StoreUnavailable("redis: the connection is lost")
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.waiting.append(_Asked(future, num_replies, self._loop.time()))
        self._writer.write(data)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look, False)
        return future

    def _look(self, was_late: bool) -> None:
        """Drop the connection if the oldest reply is late and nothing else arrives; check once more after reading what
        has arrived."""
        self._timer = None
        if not self.waiting:
            return
        since_s = self.waiting[0].since_s
        late_s = min(max(since_s, self._heard_s) + self._timeout_s, since_s + self._timeout_s * _MAX_TIMEOUTS)
        left_s = late_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look, False)
        elif not was_late:
            self._timer = self._loop.call_later(_GRACE_S, self._look, True)
        else:
            self.drop("no answer in time")

    def drop(self, why: str) -> None:
        log.warning("redis: connection dropped", extra={"why": why})
        self.transport.abort()
        self._lose()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._lose()

    def _lose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self.waiting:
            future = self.waiting.popleft().future
            if not future.done():
                future.set_exception(StoreUnavailable("redis: the connection is lost"))
                future.exception()  # marks the exception as retrieved if nothing waits
        if not self.is_closed.done():
            self.is_closed.set_result(None)


class Sender(Protocol):
    """Anything that accepts commands: a link, or a new connection that nothing else uses yet."""

    def send(self, data: bytes, num_replies: int = 1) -> asyncio.Future[Reply]: ...
    def drop(self, why: str) -> None: ...


Opened = Callable[[Sender], Awaitable[None]]


class RedisLink:
    """The link to one Redis, connected while `run` runs. `on_open` is awaited on each new connection before anything
    else uses it; `timeout_s` bounds the wait for a reply.

    Raises ValueError for a URL that is not a Redis URL.
    """

    def __init__(self, url: str, *, timeout_s: float, on_open: Opened | None = None) -> None:
        self._options = parse_url(url)
        self._is_tls = url.startswith("rediss://")
        self._timeout_s = timeout_s
        self._on_open = on_open
        self._connection: _Connection | None = None

    @property
    def is_open(self) -> bool:
        """Return True if commands can be sent now."""
        return self._connection is not None

    def send(self, data: bytes, num_replies: int = 1) -> asyncio.Future[Reply]:
        """Send the bytes of complete commands and return a future of the last reply. An error reply is returned as a
        CommandRefused value. The future, or this method, raises StoreUnavailable; the commands may or may not have
        been executed."""
        if self._connection is None:
            raise StoreUnavailable("redis: not connected")
        return self._connection.send(data, num_replies)

    async def open(self) -> None:
        """Try to connect once. Raises StoreUnavailable, CommandRefused."""
        connection = None
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                connection = await self._connect()
                await self._greet(connection)
                if self._on_open is not None:
                    await self._on_open(connection)
        except BaseException as error:
            if connection is not None:
                connection.transport.abort()
            if isinstance(error, OSError | TimeoutError):
                raise StoreUnavailable(f"redis: {type(error).__name__}") from None
            raise
        self._connection = connection

    async def run(self) -> None:
        """Keep the connection open until cancelled."""
        backoff_s = MIN_BACKOFF_S
        try:
            while True:
                try:
                    if self._connection is None:
                        await self.open()
                    backoff_s = MIN_BACKOFF_S
                    await self._until_lost()
                except (StoreUnavailable, CommandRefused) as error:
                    log.warning("redis cannot be used", extra={"why": str(error)})
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads clients
                backoff_s = min(MAX_BACKOFF_S, backoff_s * 2)
        finally:
            self.close()

    async def _until_lost(self) -> None:
        connection = self._connection
        if connection is not None:
            await asyncio.shield(connection.is_closed)
            if self._connection is connection:
                self._connection = None

    def drop(self, why: str) -> None:
        """Drop the connection after a reply that makes it unreliable."""
        if self._connection is not None:
            self._connection.drop(why)
            self._connection = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.transport.close()
            self._connection = None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()

        def make() -> _Connection:
            return _Connection(self._timeout_s)

        path = self._options.get("path")
        if path:
            return (await loop.create_unix_connection(make, path))[1]
        host, port = self._options.get("host", "localhost"), self._options.get("port", 6379)
        context = ssl.create_default_context() if self._is_tls else None
        return (await loop.create_connection(make, host, port, ssl=context))[1]

    async def _greet(self, connection: _Connection) -> None:
        """Authenticate and select the database."""
        password, user = self._options.get("password"), self._options.get("username")
        if password:
            raise_refused(await connection.send(command("AUTH", *([user] if user else []), password)))
        if self._options.get("db"):
            raise_refused(await connection.send(command("SELECT", int(self._options["db"]))))


def raise_refused(reply: Reply) -> Reply:
    """Return the reply. Raises CommandRefused if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply
