"""A TCP proxy that injects network faults, between a gateway and Redis, Postgres or a node, or between a client and a
gateway.

Each direction has its own faults, which can be changed while connections are open. The proxy runs in its own thread, so
tests with and without an event loop can use it. It listens on a free loopback port or on a Unix socket, forwards to
either, and knows no protocol.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.waiting import PATIENCE_S

T = TypeVar("T")
_POLL_INTERVAL_S = 0.005
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with timeout 0: closing the socket resets the connection


@dataclass
class Direction:
    """The faults of one direction.

    `is_paused` holds all bytes back, as in a network partition. `drops_all` discards them, as if the peer had vanished.
    `cut_after` resets the connection after that many more bytes, counted over all connections. `flip_after` corrupts
    the byte at that offset. `piece_bytes` splits the data into pieces of at most this size.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    piece_bytes: int = 0
    is_paused: bool = False
    drops_all: bool = False
    cut_after: int | None = None
    flip_after: int | None = None
    num_bytes: int = 0  # forwarded since the start
    num_dropped: int = 0  # discarded since the last `heal`


@dataclass(eq=False)
class _Link:
    """One connection. With `loses_response`, the next response is discarded and the connection is reset."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    loses_response: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class FaultProxy:
    """A proxy for `upstream`, which is a host and port or the path of a Unix socket. It listens on `path`, or on a free
    port if `path` is None.
    """

    def __init__(self, upstream: tuple[str, int] | Path, path: Path | None = None) -> None:
        self.upstream = upstream
        self.path = path
        self.port = 0
        self.to_server = Direction()
        self.to_client = Direction()
        self.refuses = False
        self.num_opened = 0
        self.num_lost_responses = 0
        self._loses_response_to: Callable[[bytes], bool] | None = None
        self._links: set[_Link] = set()
        self._random = random.Random(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._jobs: set[asyncio.Task[None]] = set()

    def start(self) -> FaultProxy:
        self._thread.start()
        self._run(self._open())
        return self

    def stop(self) -> None:
        """Close all connections and end the thread."""
        if self._thread.is_alive():
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def num_connections(self) -> int:
        """The number of open connections."""
        return len(self._links)

    def partition(self) -> None:
        """Hold back all bytes in both directions, on open and on new connections."""
        self.to_server.is_paused = self.to_client.is_paused = True

    def drop_silently(self) -> None:
        """Discard all bytes in both directions without closing any connection."""
        self.to_server.drops_all = self.to_client.drops_all = True

    def delay(self, delay_s: float, jitter_s: float = 0.0) -> None:
        """Delay each direction."""
        for direction in (self.to_server, self.to_client):
            direction.delay_s, direction.jitter_s = delay_s, jitter_s

    def heal(self) -> None:
        """Remove all faults. Discarded bytes stay lost."""
        self.refuses, self._loses_response_to = False, None
        for direction in (self.to_server, self.to_client):
            num_bytes = direction.num_bytes
            direction.__dict__.update(Direction(num_bytes=num_bytes).__dict__)

    def lose_response(self, when: Callable[[bytes], bool]) -> None:
        """Forward the next request whose bytes match, discard its response, and reset the connection. Applies once."""
        self._loses_response_to = when

    def reset(self) -> None:
        """Reset all connections."""
        self._run(self._reset_all())

    def half_close(self) -> None:
        """Half-close all connections: the server sends no more, but still receives."""
        self._run(self._half_close_all())

    def _run(self, job: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(PATIENCE_S)

    async def _open(self) -> None:
        if self.path is not None:
            self._server = await asyncio.start_unix_server(self._accept, self.path)
            return
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._reset_all()
        for job in list(self._jobs):
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            _abort(writer)
            return
        try:
            if isinstance(self.upstream, Path):
                server_reader, server_writer = await asyncio.open_unix_connection(self.upstream)
            else:
                server_reader, server_writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            _abort(writer)
            return
        self.num_opened += 1
        link = _Link(writer, server_writer)
        self._links.add(link)
        for pump in (
            self._pump(link, reader, server_writer, self.to_server),
            self._pump(link, server_reader, writer, self.to_client),
        ):
            task = self._loop.create_task(pump)
            link.tasks.append(task)
            self._jobs.add(task)
            task.add_done_callback(self._jobs.discard)

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if (
                    direction is self.to_server
                    and self._loses_response_to is not None
                    and self._loses_response_to(data)
                ):
                    self._loses_response_to, link.loses_response = None, True
                elif direction is self.to_client and link.loses_response:
                    self.num_lost_responses += 1
                    self._reset(link)
                    return
                if not await self._pass(writer, data, direction):
                    self._reset(link)
                    return
            await _wait_while(lambda: direction.is_paused)
            if not direction.drops_all and writer.can_write_eof():
                writer.write_eof()
            else:
                await _wait_while(lambda: link in self._links)
        except (OSError, RuntimeError):  # RuntimeError: the server sent data after `half_close`
            self._reset(link)
            return
        if len([task for task in link.tasks if not task.done()]) <= 1:  # the other direction has ended too
            self._reset(link)

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes, direction: Direction) -> bool:
        """Forward bytes with the faults of a direction. Return False if the connection must be reset."""
        size = direction.piece_bytes or len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            if direction.delay_s or direction.jitter_s:
                await asyncio.sleep(direction.delay_s + self._random.uniform(0, direction.jitter_s))
            if direction.bytes_per_s:
                await asyncio.sleep(len(piece) / direction.bytes_per_s)
            await _wait_while(lambda: direction.is_paused)
            if direction.drops_all:
                direction.num_dropped += len(piece)
                continue
            if direction.flip_after is not None:
                if direction.flip_after < len(piece):
                    changed = bytearray(piece)
                    changed[direction.flip_after] ^= 0xFF
                    piece, direction.flip_after = bytes(changed), None
                else:
                    direction.flip_after -= len(piece)
            is_cut = direction.cut_after is not None and len(piece) >= direction.cut_after
            if direction.cut_after is not None:
                piece = piece[: direction.cut_after]
                direction.cut_after = None if is_cut else direction.cut_after - len(piece)
            writer.write(piece)
            direction.num_bytes += len(piece)
            await writer.drain()
            if is_cut:
                return False
        return True

    async def _reset_all(self) -> None:
        for link in list(self._links):
            self._reset(link)

    async def _half_close_all(self) -> None:
        for link in list(self._links):
            if link.client.can_write_eof():
                link.client.write_eof()

    def _reset(self, link: _Link) -> None:
        self._links.discard(link)
        for writer in (link.client, link.server):
            _abort(writer)


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close without a FIN: over TCP the peer receives a reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_INET and not writer.transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def _wait_while(holds: Callable[[], bool]) -> None:
    while holds():  # noqa: ASYNC110 - faults are switched from another thread
        await asyncio.sleep(_POLL_INTERVAL_S)
