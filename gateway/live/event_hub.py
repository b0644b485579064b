"""EventHub: one source per topic and account, shared by all event streams of this gateway that show it.

A source runs while a stream is open, and makes each event once for all streams. A stream has a bounded queue; a client
that reads too slowly loses its stream and connects again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec

log = logging.getLogger(__name__)

MAX_STREAMS = 512
MAX_STREAMS_PER_CALLER = 32
MAX_UNREAD_FRAMES = 128
MAX_UNREAD_BYTES = 4 << 20
_RESTART_S = 1.0

Source = Callable[[], AsyncIterator[Any]]
"""Yields the data of events until closed."""

_encode = msgspec.json.Encoder().encode


class TooManyStreams(Exception):
    """This gateway, or the caller, has too many open event streams."""


class EventStream:
    """The events for one client, as frames of server-sent events."""

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self._frames: list[bytes] = []
        self._num_bytes = 0
        self._has_frames = asyncio.Event()
        self.is_over = False

    def put(self, frame: bytes) -> None:
        """Add a frame. A stream with too much unread data is over."""
        if self.is_over:
            return
        self._frames.append(frame)
        self._num_bytes += len(frame)
        self.is_over = len(self._frames) > MAX_UNREAD_FRAMES or self._num_bytes > MAX_UNREAD_BYTES
        self._has_frames.set()

    def end(self) -> None:
        """End the stream early."""
        self.is_over = True
        self._has_frames.set()

    async def take(self, timeout_s: float) -> bytes:
        """Return all unread frames, or b"" if there is none within the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_frames.wait()
        except TimeoutError:
            return b""
        frames, self._frames, self._num_bytes = self._frames, [], 0
        self._has_frames.clear()
        return b"".join(frames)


class EventHub:
    """The open streams and the sources that they share."""

    def __init__(self) -> None:
        self._streams: set[EventStream] = set()
        self._readers: dict[tuple[str, str], set[EventStream]] = {}  # (topic, account) -> streams
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def open(self, caller: str, sources: Iterable[tuple[str, str, Source]]) -> EventStream:
        """Open a stream with the events of these sources, each given by topic, account and function. Raises
        TooManyStreams."""
        num_own = sum(stream.caller == caller for stream in self._streams)
        if len(self._streams) >= MAX_STREAMS or num_own >= MAX_STREAMS_PER_CALLER:
            raise TooManyStreams
        stream = EventStream(caller)
        self._streams.add(stream)
        for topic, account_id, source in sources:
            key = (topic, account_id)
            self._readers.setdefault(key, set()).add(stream)
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._run(key, source), name=f"events {topic}")
        return stream

    def close_stream(self, stream: EventStream) -> None:
        """Remove a stream, and end the sources that no other stream needs."""
        self._streams.discard(stream)
        for key, readers in list(self._readers.items()):
            readers.discard(stream)
            if not readers:
                del self._readers[key]
                self._tasks.pop(key).cancel()

    def end_streams(self) -> None:
        """End all streams, because the gateway shuts down. Clients connect again, to another gateway."""
        for stream in self._streams:
            stream.end()

    async def close(self) -> None:
        """End all sources."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: tuple[str, str], source: Source) -> None:
        """Send the events of a source to its streams. A source that fails is started again."""
        while True:
            try:
                async for data in source():
                    event = frame(key[0], data)
                    for stream in self._readers.get(key, ()):
                        stream.put(event)
            except Exception:
                log.exception("source of events failed and is restarted", extra={"topic": key[0]})
            await asyncio.sleep(_RESTART_S)


def frame(topic: str, data: Any) -> bytes:
    """Return one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (topic.encode(), _encode(data))
