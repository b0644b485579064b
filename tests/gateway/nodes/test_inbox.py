"""The inbox returns the events of a call in order, in time and once."""

import asyncio

import pytest
import uvloop

from engine.protocol.events import Finished, Token
from gateway.nodes.connections import NodeLost
from gateway.nodes.inbox import Inbox, Overrun
from gateway.streaming import COALESCE_S

STREAM = {"waits_for_end": False, "max_bytes": 1 << 20}


async def test_inbox_returns_nothing_early_except_the_end():
    inbox = Inbox(**STREAM)
    loop = asyncio.get_running_loop()
    inbox.put(Token("a"))
    start = loop.time()
    loop.call_later(0.01, inbox.put, Token("b"))
    assert len(await inbox.take(start + 0.05)) == 2
    assert loop.time() >= start + 0.05
    loop.call_later(0.01, inbox.put, Finished("stop"))
    await inbox.take(loop.time() + 60)


class Counted(Inbox):
    """Counts how often it wakes its reader."""

    num_wakes = 0

    def _wake(self) -> None:
        self.num_wakes += 1
        super()._wake()


def test_reader_wakes_once_despite_clock_rounding():
    async def take(inbox: Inbox, after_s: float) -> None:
        await asyncio.sleep(after_s)
        inbox.put(Token("a"))
        assert await inbox.take(asyncio.get_running_loop().time() + COALESCE_S) == [Token("a")]

    async def take_at_many_times() -> list[int]:
        inboxes = [Counted(**STREAM) for _ in range(100)]
        await asyncio.gather(*(take(inbox, number / 1000) for number, inbox in enumerate(inboxes)))
        return [inbox.num_wakes for inbox in inboxes]

    assert uvloop.run(take_at_many_times()) == [1] * 100


async def test_slow_reader_gets_overrun():
    inbox = Inbox(waits_for_end=False, max_bytes=1000)
    for _ in range(20):
        inbox.put(Token("x" * 50))
    with pytest.raises(Overrun):
        await inbox.take()


async def test_events_before_a_lost_connection_are_passed_on_unless_the_call_is_retried():
    fresh, begun = Inbox(**STREAM), Inbox(**STREAM)
    begun.put(Token("a"))
    await begun.take()
    for inbox in (fresh, begun):
        inbox.put(Token("b"))
        inbox.fail(NodeLost("n1"))
    with pytest.raises(NodeLost):
        await fresh.take()
    assert await begun.take() == [Token("b")]
    with pytest.raises(NodeLost):
        await begun.take()
