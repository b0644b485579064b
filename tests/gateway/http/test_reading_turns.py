"""A turn serves one connection at a time: everything else that is due runs between two connections."""

from __future__ import annotations

import asyncio
import time

from gateway.http.reading_turns import TURN_S, ReadingTurns
from tests.waiting import wait_until

NUM_CONNECTIONS = 20


class _Connection:
    """A connection whose data is one request, which takes longer than a turn."""

    def __init__(self, running: list[str]) -> None:
        self._running = running

    def take_turn(self) -> None:
        self._running.append("parsed")
        asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._running.append("served")
        time.sleep(TURN_S)


def test_requests_of_waiting_connections_are_served_one_after_the_other():
    async def run() -> list[str]:
        turns, running = ReadingTurns(), []
        for _ in range(NUM_CONNECTIONS):
            turns.add(_Connection(running), "client", 1)
        await wait_until(lambda: len(running) == 2 * NUM_CONNECTIONS)
        return running

    assert asyncio.run(run()) == ["parsed", "served"] * NUM_CONNECTIONS
