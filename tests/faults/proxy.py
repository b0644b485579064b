"""A TCP proxy that ill-treats what passes: between a gateway and Redis, Postgres or a node, or a client and a gateway.

Each direction has its own faults, which are switched while connections live. Runs in a thread of its own, so that tests
with and without an event loop use it alike; listens on a free port of loopback, or on a Unix socket, and passes on to
either. Knows bytes and no protocol.
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
_LOOK_S = 0.005
_RESET = struct.pack("ii", 1, 0)  # linger, for no time at all: what closes the socket resets the connection


@dataclass
class Way:
    """One direction. `is_held`: nothing passes until it is let go, as while a network is parted; `is_lost`: what passes
    is thrown away, as by a peer that vanished without a word. `cut_after`: so many bytes more, of all connections
    together, then a reset in the middle of whatever it is. `piece_bytes`: what is larger comes in pieces."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    piece_bytes: int = 0
    is_held: bool = False
    is_lost: bool = False
    cut_after: int | None = None
    flip_after: int | None = None
    num_bytes: int = 0  # passed, ever
    num_lost: int = 0  # thrown away, since it was last healed


@dataclass(eq=False)
class _Link:
    """One connection through the proxy. `is_doomed`: its next answer is lost, and the connection with it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    is_doomed: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class FaultProxy:
    """To `upstream`: host and port, or the path of a Unix socket. `path` is where it listens, else a free port."""

    def __init__(self, upstream: tuple[str, int] | Path, path: Path | None = None) -> None:
        self.upstream = upstream
        self.path = path
        self.port = 0
        self.to_server = Way()
        self.to_client = Way()
        self.refuses = False
        self.num_opened = 0
        self.num_answers_lost = 0
        self._dooms: Callable[[bytes], bool] | None = None
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
        """Close everything and end the thread."""
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
    def num_links(self) -> int:
        """Connections that are open through it now."""
        return len(self._links)

    def part(self) -> None:
        """Nothing passes in either direction, on connections that are and that come; none of them hears of it."""
        self.to_server.is_held = self.to_client.is_held = True

    def vanish(self) -> None:
        """The other side of every connection is gone for good, and nobody said so."""
        self.to_server.is_lost = self.to_client.is_lost = True

    def slow(self, delay_s: float, jitter_s: float = 0.0) -> None:
        """Each direction takes so much longer."""
        for way in (self.to_server, self.to_client):
            way.delay_s, way.jitter_s = delay_s, jitter_s

    def heal(self) -> None:
        """No faults from now on. What was thrown away stays lost."""
        self.refuses, self._dooms = False, None
        for way in (self.to_server, self.to_client):
            num_bytes = way.num_bytes
            way.__dict__.update(Way(num_bytes=num_bytes).__dict__)

    def lose_answer(self, when: Callable[[bytes], bool]) -> None:
        """Of the next request in whose bytes this finds what it looks for: it arrives, its answer does not, and the
        connection is reset. Once."""
        self._dooms = when

    def reset(self) -> None:
        """Reset every connection."""
        self._run(self._reset_all())

    def half_close(self) -> None:
        """The server has nothing more to say on any connection, and would still listen."""
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
                its_reader, its_writer = await asyncio.open_unix_connection(self.upstream)
            else:
                its_reader, its_writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            _abort(writer)
            return
        self.num_opened += 1
        link = _Link(writer, its_writer)
        self._links.add(link)
        for pump in (self._pump(link, reader, its_writer, self.to_server), self._answer(link, its_reader, writer)):
            task = self._loop.create_task(pump)
            link.tasks.append(task)
            self._jobs.add(task)
            task.add_done_callback(self._jobs.discard)

    async def _answer(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._pump(link, reader, writer, self.to_client)

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        try:
            while data := await reader.read(1 << 16):
                if way is self.to_server and self._dooms is not None and self._dooms(data):
                    self._dooms, link.is_doomed = None, True
                elif way is self.to_client and link.is_doomed:
                    self.num_answers_lost += 1
                    self._reset(link)
                    return
                if not await self._pass(writer, data, way):
                    self._reset(link)
                    return
            await _while(lambda: way.is_held)
            if not way.is_lost and writer.can_write_eof():
                writer.write_eof()
            else:
                await _while(lambda: link in self._links)
        except (OSError, asyncio.IncompleteReadError):
            self._reset(link)
            return
        if len([task for task in link.tasks if not task.done()]) <= 1:  # the other direction has ended too
            self._reset(link)

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes, way: Way) -> bool:
        """Whether the connection lives on."""
        size = way.piece_bytes or len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            if way.delay_s or way.jitter_s:
                await asyncio.sleep(way.delay_s + self._random.uniform(0, way.jitter_s))
            if way.bytes_per_s:
                await asyncio.sleep(len(piece) / way.bytes_per_s)
            await _while(lambda: way.is_held)
            if way.is_lost:
                way.num_lost += len(piece)
                continue
            if way.flip_after is not None:
                if way.flip_after < len(piece):
                    changed = bytearray(piece)
                    changed[way.flip_after] ^= 0xFF
                    piece, way.flip_after = bytes(changed), None
                else:
                    way.flip_after -= len(piece)
            is_cut = way.cut_after is not None and len(piece) >= way.cut_after
            if way.cut_after is not None:
                piece = piece[: way.cut_after]
                way.cut_after = None if is_cut else way.cut_after - len(piece)
            writer.write(piece)
            way.num_bytes += len(piece)
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
    """Close without a word: over TCP the other side sees a reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_INET and not writer.transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def _while(holds: Callable[[], bool]) -> None:
    while holds():  # noqa: ASYNC110 - faults are switched from another thread
        await asyncio.sleep(_LOOK_S)
