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
from dataclasses import dataclass
from functools import partial
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
_MAX_UNSENT_COMMANDS = 16  # more are sent before the event-loop turn ends, so that Redis can start
_MAX_LINE_BYTES = 4096  # longest line of a Redis response

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
            parsed = self._parse(at)
            if parsed is None:
                break
            reply, at = parsed
            replies.append(reply)
        self._data = self._data[at:]
        return replies

    def _parse(self, at: int) -> tuple[Reply, int] | None:
        """Return the reply at `at` and the position after it; None if it is incomplete."""
        data = self._data
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > _MAX_LINE_BYTES:
                raise ValueError("a line of a reply is too long")
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
            return self._array(int(line), end + 2)
        raise ValueError("not a RESP 2 reply")

    def _array(self, count: int, at: int) -> tuple[Reply, int] | None:
        replies: list[Any] = []
        for _ in range(count):
            parsed = self._parse(at)
            if parsed is None:
                return None
            reply, at = parsed
            replies.append(reply)
        return replies if count >= 0 else None, at


@dataclass(slots=True)
class _PendingReply:
    """The last of `num_replies` replies that are due; `since_s` is the loop's time when the commands were sent."""

    future: asyncio.Future[Reply]
    num_replies: int
    since_s: float


class _Connection(asyncio.Protocol):
    """One connection. `pending` has the replies that are due, in order."""

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._received_s = 0.0
        self._reader = ReplyReader()
        self._writer = CoalescingWriter(max_pending=_MAX_UNSENT_COMMANDS)
        self._timer: asyncio.TimerHandle | None = None
        self.pending: deque[_PendingReply] = deque()
        self.is_closed: asyncio.Future[None] = self._loop.create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._writer.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received_s = self._loop.time()
        try:
            replies = self._reader.feed(data)
        except ValueError as error:
            self.drop(str(error))
            return
        for reply in replies:
            if not self.pending:
                self.drop("unexpected reply")
                return
            pending = self.pending[0]
            pending.num_replies -= 1
            if not pending.num_replies:
                self.pending.popleft()
                if not pending.future.done():
                    pending.future.set_result(reply)

    def send(self, data: bytes, num_replies: int = 1) -> asyncio.Future[Reply]:
        if self.is_closed.done():
            raise StoreUnavailable("redis: the connection was lost")
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.pending.append(_PendingReply(future, num_replies, self._loop.time()))
        self._writer.write(data)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check_timeout, False)
        return future

    def _check_timeout(self, was_late: bool) -> None:
        """Drop the connection if the oldest reply is late and nothing else arrives; check once more after reading what
        has arrived."""
        self._timer = None
        if not self.pending:
            return
        since_s = self.pending[0].since_s
        late_s = min(max(since_s, self._received_s) + self._timeout_s, since_s + self._timeout_s * _MAX_TIMEOUTS)
        left_s = late_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_timeout, False)
        elif not was_late:
            self._timer = self._loop.call_later(_GRACE_S, self._check_timeout, True)
        else:
            self.drop("no reply in time")

    def drop(self, reason: str) -> None:
        log.warning("redis connection dropped", extra={"reason": reason})
        self.transport.abort()
        self._close()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self.pending:
            future = self.pending.popleft().future
            if not future.done():
                future.set_exception(StoreUnavailable("redis: the connection was lost"))
                future.exception()  # marks the exception as retrieved if nothing waits
        if not self.is_closed.done():
            self.is_closed.set_result(None)


class Sender(Protocol):
    """Anything that accepts commands: a link, or a new connection that nothing else uses yet."""

    def send(self, data: bytes, num_replies: int = 1) -> asyncio.Future[Reply]: ...
    def drop(self, reason: str) -> None: ...


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
        self.lost_s: float | None = None  # loop time of the last loss of a connection

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
                backoff_s = MIN_BACKOFF_S if await self._connect_until_lost() else min(MAX_BACKOFF_S, backoff_s * 2)
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads clients
        finally:
            self.close()

    async def _connect_until_lost(self) -> bool:
        """Connect, unless connected, and wait until the connection is lost. Return True if there was a connection."""
        if self._connection is None:
            try:
                await self.open()
            except (StoreUnavailable, CommandRefused) as error:
                log.warning("redis is unavailable", extra={"reason": str(error)})
        connection = self._connection
        if connection is None:
            return False
        await asyncio.shield(connection.is_closed)
        self.lost_s = asyncio.get_running_loop().time()
        if self._connection is connection:
            self._connection = None
        return True

    def drop(self, reason: str) -> None:
        """Drop the connection after a reply that makes it unreliable."""
        if self._connection is not None:
            self._connection.drop(reason)
            self._connection = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.transport.close()
            self._connection = None

    async def _connect(self) -> _Connection:
        loop, make = asyncio.get_running_loop(), partial(_Connection, self._timeout_s)
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
            raise_if_refused(await connection.send(command("AUTH", *([user] if user else []), password)))
        if self._options.get("db"):
            raise_if_refused(await connection.send(command("SELECT", int(self._options["db"]))))


def raise_if_refused(reply: Reply) -> Reply:
    """Return the reply. Raises CommandRefused if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply
