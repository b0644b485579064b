"""Large bodies of one account are parsed one at a time with pauses; those of others do not wait for them."""

from __future__ import annotations

import asyncio
import threading
import time

from gateway.parsing_turns import ParsingTurns

PARSE_S = 0.02


def test_waiting_bodies_of_one_account_are_parsed_one_at_a_time_with_pauses():
    lock, overlaps = threading.Lock(), []

    def parse() -> None:
        overlaps.append(not lock.acquire(blocking=False))
        time.sleep(PARSE_S)
        lock.release()

    async def run() -> float:
        turns = ParsingTurns(3)
        began_s = time.perf_counter()
        await asyncio.gather(*(turns.parse("one", parse) for _ in range(3)))
        return time.perf_counter() - began_s

    assert asyncio.run(run()) >= 3 * PARSE_S + 2 * 2 * PARSE_S
    assert overlaps == [False] * 3


def test_another_account_does_not_wait():
    release = threading.Event()

    async def run() -> str:
        turns = ParsingTurns(3)
        busy = [asyncio.create_task(turns.parse("one", release.wait)) for _ in range(5)]
        await asyncio.sleep(0)
        try:
            return await turns.parse("two", lambda: "parsed")
        finally:
            release.set()
            await asyncio.gather(*busy)

    assert asyncio.run(run()) == "parsed"
