"""Parse large bodies in threads, in turn for each account, so that they do not delay the requests of others.

Threads and event loop share the interpreter lock. So an account parses one large body at a time, and pauses after each
if more of its bodies wait.
Small bodies are parsed at once, because a thread would cost more. What a body means is known to the endpoints.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from telemetry.fair_share import FairQueue

_LARGE_BYTES = 256 * 1024
_SMALL_BYTES = 4 * 1024
_MANY_ELEMENTS = 1000
_MAX_PER_ACCOUNT = 1
_PAUSE_FACTOR = 2  # pause of an account with waiting bodies, as a multiple of the time that parsing the last one took

Value = TypeVar("Value")


def takes_long(body: bytes) -> bool:
    """Return True if parsing a body may take more than some milliseconds."""
    if len(body) < _SMALL_BYTES:
        return False
    return len(body) >= _LARGE_BYTES or sum(map(body.count, (b",", b"[", b"{"))) > _MANY_ELEMENTS


class ParsingTurns:
    """The threads of one gateway that parse large bodies."""

    def __init__(self, num_threads: int) -> None:
        self._turns = FairQueue(sys.maxsize, _MAX_PER_ACCOUNT)  # account -> its bodies, one after the other
        self._threads = FairQueue(num_threads, _MAX_PER_ACCOUNT)
        self._pauses: dict[str, asyncio.TimerHandle] = {}  # party -> timer that ends its pause and removes the entry

    async def parse(self, party: str, parse: Callable[[], Value]) -> Value:
        """Call `parse` in a thread, when it is the party's turn. Raises what `parse` raises."""
        loop = asyncio.get_running_loop()
        has_waited = self._turns.held_by(party) > 0
        async with self._turns.slot(party):
            if has_waited and (pause := self._pauses.get(party)) is not None:
                await asyncio.sleep(pause.when() - loop.time())  # without a thread, which others may need
            async with self._threads.slot(party):
                began_s = loop.time()
                try:
                    return await asyncio.to_thread(parse)
                finally:
                    self._pause(loop, party, _PAUSE_FACTOR * (loop.time() - began_s))

    def _pause(self, loop: asyncio.AbstractEventLoop, party: str, pause_s: float) -> None:
        if (earlier := self._pauses.pop(party, None)) is not None:
            earlier.cancel()
        self._pauses[party] = loop.call_later(pause_s, self._pauses.pop, party, None)

    async def decode(self, party: str, body: bytes, decode: Callable[[], Awaitable[Value]]) -> Value:
        """Await `decode`, in a thread with an event loop of its own if the body takes long. Raises what `decode`
        raises."""
        if not takes_long(body):
            return await decode()

        async def run() -> Value:
            return await decode()

        return await self.parse(party, lambda: asyncio.run(run()))
