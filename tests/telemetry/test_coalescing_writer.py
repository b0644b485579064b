"""telemetry/coalescing_writer.py: one write per turn of the event loop."""

from __future__ import annotations

import asyncio
import socket

from telemetry.coalescing_writer import CoalescingWriter


async def test_writes_of_one_event_loop_turn_are_sent_together():
    ours, theirs = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    num_written = 0

    def count() -> None:
        nonlocal num_written
        num_written += 1

    writer = CoalescingWriter(max_pending=3, on_written=count)
    writer.transport = transport
    for data in (b"a", b"b"):
        writer.write(data)
    assert num_written == 0
    await asyncio.sleep(0)
    assert num_written == 1
    for data in (b"c", b"d", b"e"):
        writer.write(data)
    assert num_written == 2, "the third pending write is not delayed"
    theirs.settimeout(5)
    assert await asyncio.to_thread(theirs.recv, 10) in (b"abcde", b"ab")
    transport.abort()
    writer.write(b"f")
    writer.flush()
    assert num_written == 2, "data for a closing transport is discarded"
    theirs.close()
