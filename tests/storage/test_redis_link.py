"""storage/redis_link.py: replies are matched to commands, and late or unexpected replies drop the connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import redis_link
from storage.embedded_redis import EmbeddedRedis
from storage.errors import StoreUnavailable
from storage.redis_link import CommandRefused, RedisLink, ReplyReader, command
from tests.fakes.virtual_loop import run_virtually
from tests.waiting import wait_until

REPLIES = (
    b"+OK\r\n:42\r\n$5\r\nhe\r\nl\r\n$-1\r\n*3\r\n:1\r\n*1\r\n$0\r\n\r\n$-1\r\n-NOSCRIPT no such\r\n*-1\r\n:-7\r\n"
)


def test_command_is_encoded_in_resp():
    assert command("SET", b"k\r\n", 12) == b"*3\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$2\r\n12\r\n"


@given(st.lists(st.integers(0, len(REPLIES)), max_size=8))
def test_replies_are_parsed_from_any_fragments(cuts: list[int]):
    reader, found, at = ReplyReader(), [], 0
    for cut in [*sorted(cuts), len(REPLIES)]:
        found += reader.feed(REPLIES[at:cut])
        at = cut
    refused = found.pop(5)
    assert isinstance(refused, CommandRefused)
    assert (refused.code, str(refused)) == ("NOSCRIPT", "NOSCRIPT no such")
    assert found == [b"OK", 42, b"he\r\nl", None, [1, [b""], None], None, -7]


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\n", b"+" + b"x" * 5000, b":x\r\n"])
def test_bytes_that_are_not_resp_are_rejected(data: bytes):
    with pytest.raises(ValueError, match=r"reply|literal"):
        ReplyReader().feed(data)


async def test_concurrent_commands_get_their_own_replies(own_redis_server: EmbeddedRedis):
    link = RedisLink(own_redis_server.url, timeout_s=10)
    await link.open()
    responses = await asyncio.gather(*(link.send(command("ECHO", f"{i}" * 300)) for i in range(200)))
    assert responses == [f"{i}".encode() * 300 for i in range(200)]
    last = await link.send(command("ECHO", "a") + command("NO SUCH") + command("ECHO", "c"), 3)
    assert last == b"c"
    assert isinstance(await link.send(command("NO SUCH")), CommandRefused)
    link.close()
    await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serve_reply(reply: bytes | None, folder: Path) -> AsyncIterator[str]:
    """Listen on a socket and send `reply`, or nothing, for whatever is received."""

    serving = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(writer)
        while await reader.read(1000):
            if reply is not None:
                writer.write(reply)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        serving.discard(writer)

    path = folder / "fake.sock"
    listening = await asyncio.start_unix_server(serve, path)
    try:
        yield f"unix://{path}"
    finally:
        listening.close()
        await wait_until(lambda: not serving)


async def test_late_reply_drops_the_connection_for_all_waiters(tmp_path: Path):
    async with serve_reply(None, tmp_path) as url:
        link = RedisLink(url, timeout_s=0.02)
        await link.open()
        waiting = [link.send(command("PING")) for _ in range(3)]
        for response in waiting:
            with pytest.raises(StoreUnavailable):
                await response
        with pytest.raises(StoreUnavailable):
            link.send(command("PING"))


def test_server_that_keeps_replying_is_waited_for():
    async def num_replied(pause_s: float) -> int:
        loop = asyncio.get_running_loop()

        async def reply_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while await reader.readline():
                    await asyncio.sleep(pause_s)
                    writer.write(b"+OK\r\n")

        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=theirs)
        serving = loop.create_task(reply_slowly(reader, writer))
        _, connection = await loop.create_unix_connection(lambda: redis_link._Connection(1.0), sock=ours)
        waiting = [connection.send(b"PING\n", 1) for _ in range(100)]
        responses = await asyncio.gather(*waiting, return_exceptions=True)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        writer.close()
        return sum(response == b"OK" for response in responses)

    assert run_virtually(num_replied(0.1)) == 100, "the last comes after ten times the wait for one"
    assert run_virtually(num_replied(0.6)) == 33, "but nobody waits for ever"
    assert run_virtually(num_replied(1.5)) == 0


async def test_unexpected_reply_drops_the_connection(tmp_path: Path):
    async with serve_reply(b"+A\r\n+B\r\n", tmp_path) as url:
        link = RedisLink(url, timeout_s=10)
        await link.open()
        assert await link.send(command("PING")) == b"A"
        with pytest.raises(StoreUnavailable):
            await link.send(command("PING"))


async def test_connection_is_reopened_when_the_server_recovers(own_redis_server: EmbeddedRedis):
    opened = []

    async def note(link: RedisLink) -> None:
        opened.append(await link.send(command("PING")))

    link = RedisLink(own_redis_server.url, timeout_s=10, on_open=note)
    job = asyncio.create_task(link.run())
    await wait_until(lambda: link.is_open)
    own_redis_server.stop()
    await wait_until(lambda: not link.is_open)
    with pytest.raises(StoreUnavailable):
        link.send(command("PING"))
    own_redis_server.start()
    await wait_until(lambda: link.is_open)
    link.drop("a test says so")
    await wait_until(lambda: link.is_open)
    assert opened == [b"PONG"] * 3
    job.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await job
    assert not link.is_open
    await asyncio.sleep(0)
