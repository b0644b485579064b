"""Parse large bodies in a thread, and in turn for each account, so that they do not delay the requests of others.

Small bodies are parsed at once, because a thread would cost more. What a body means is known to the endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.services import Services

_LARGE_BYTES = 256 * 1024
_SMALL_BYTES = 4 * 1024
_MANY_ELEMENTS = 1000

Value = TypeVar("Value")


def takes_long(body: bytes) -> bool:
    """Return True if parsing a body may take more than some milliseconds."""
    if len(body) < _SMALL_BYTES:
        return False
    return len(body) >= _LARGE_BYTES or sum(map(body.count, (b",", b"[", b"{"))) > _MANY_ELEMENTS


async def parse_in_turn(services: Services, party: str, parse: Callable[[], Value]) -> Value:
    """Call `parse` in a thread, when it is the party's turn. Raises what `parse` raises."""
    async with services.parsing_turns.slot(party):
        return await asyncio.to_thread(parse)


async def decode_in_turn(services: Services, party: str, body: bytes, decode: Callable[[], Awaitable[Value]]) -> Value:
    """Await `decode`, in a thread with an event loop of its own if the body takes long. Raises what `decode` raises."""
    if not takes_long(body):
        return await decode()

    async def run() -> Value:
        return await decode()

    return await parse_in_turn(services, party, lambda: asyncio.run(run()))
