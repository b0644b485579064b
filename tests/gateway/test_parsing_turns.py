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


def test_pauses_of_accounts_take_no_threads():
    async def run() -> float:
        turns = ParsingTurns(2)
        busy = [asyncio.create_task(turns.parse(account, lambda: time.sleep(0.2))) for account in ("one", "two") * 2]
        await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(busy[:2])
        began_s = time.perf_counter()
        await turns.parse("three", lambda: None)
        waited_s = time.perf_counter() - began_s
        await asyncio.gather(*busy)
        return waited_s

    assert asyncio.run(run()) < 0.2, "the others pause for 0.4 s"


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
