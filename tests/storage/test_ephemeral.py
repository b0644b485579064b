"""storage/ephemeral.py with a real redis-server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from storage import database as database_module
from storage import ephemeral as ephemeral_module
from storage.embedded_redis import EmbeddedRedis
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
async def ephemeral(redis_url: str) -> AsyncIterator[Ephemeral]:
    store = Ephemeral.connect(redis_url, timeout_s=30.0)
    yield store
    await store.close()


async def test_value_exists_until_it_expires_or_is_deleted(ephemeral: Ephemeral) -> None:
    await ephemeral.set("short", b"\x00\xff", ttl_s=0.05)
    await ephemeral.set("long", b"here", ttl_s=60)
    assert await ephemeral.get("long") == b"here"
    await wait_until(lambda: _is_absent(ephemeral, "short"))
    await ephemeral.delete("long")
    assert await ephemeral.get("long") is None


async def _is_absent(ephemeral: Ephemeral, key: str) -> bool:
    return await ephemeral.get(key) is None


async def test_presence_expires(ephemeral: Ephemeral) -> None:
    await ephemeral.announce("nodes", "a", b"1", ttl_s=60)
    await ephemeral.announce("nodes", "b", b"2", ttl_s=0.05)
    await ephemeral.announce("gateways", "c", b"3", ttl_s=60)

    async def only_a() -> bool:
        return await ephemeral.present("nodes") == {"a": b"1"}

    await wait_until(only_a)
    assert await ephemeral.present("nobody") == {}


def _real_s() -> float:
    return datetime.now(UTC).timestamp()


async def test_wrong_clock_of_one_process_does_not_remove_others(
    ephemeral: Ephemeral, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, wrong_by_s in (("a", 0.0), ("b", 7_300.0), ("c", -86_400.0), ("d", 0.0)):
        wrong = time.time() + wrong_by_s
        with monkeypatch.context() as patched:
            patched.setattr("time.time", lambda wrong=wrong: wrong)
            before_s = _real_s()
            told_s = await ephemeral.announce("nodes", name, name.encode(), ttl_s=60)
            assert before_s - 1 < told_s < _real_s() + 1
    assert set(await ephemeral.present("nodes")) == {"a", "b", "c", "d"}


async def test_newest_announcement_replaces_earlier_ones_and_withdrawal_is_immediate(ephemeral: Ephemeral) -> None:
    await ephemeral.announce("nodes", "a", b"old", ttl_s=60)
    await ephemeral.announce("nodes", "a", b"new", ttl_s=60)
    assert await ephemeral.present("nodes") == {"a": b"new"}
    await ephemeral.withdraw("nodes", "a")
    assert await ephemeral.present("nodes") == {}


async def test_local_subscriber_is_called_at_once_even_if_redis_is_unavailable(
    ephemeral: Ephemeral, tmp_path: Path
) -> None:
    away = Ephemeral.connect(f"unix://{tmp_path / 'nobody'}")
    for store in (ephemeral, away):
        heard: list[bytes] = []
        store.subscribe_local("channel", heard.append)
        store.subscribe_local("channel", heard.append)
        with contextlib.nullcontext() if store is ephemeral else pytest.raises(StoreUnavailable):
            await store.publish("channel", b"one")
        assert heard == [b"one", b"one"]
        with contextlib.suppress(StoreUnavailable):
            await store.publish("other channel", b"two")
        assert len(heard) == 2
    await away.close()


async def test_message_reaches_every_subscriber_once(ephemeral: Ephemeral) -> None:
    listeners = [ephemeral.subscribe("channel"), ephemeral.subscribe("channel")]
    assert [await anext(listener) for listener in listeners] == [b"", b""]
    await ephemeral.publish("channel", b"hello")
    await ephemeral.publish("elsewhere", b"not this")
    await ephemeral.publish("channel", b"again")
    for listener in listeners:
        assert [await anext(listener), await anext(listener)] == [b"hello", b"again"]
        await listener.aclose()


@pytest.mark.parametrize("num_steps", range(12))
async def test_cancellation_is_never_lost_during_a_command(redis_url: str, num_steps: int) -> None:
    store = Ephemeral.connect(redis_url, timeout_s=30.0)

    async def ask_for_ever() -> None:
        while True:
            await store.present("cancelled")

    asking = asyncio.create_task(ask_for_ever())
    for _ in range(num_steps):
        await asyncio.sleep(0)
    asking.cancel()
    done, _ = await asyncio.wait({asking}, timeout=30)
    assert done
    assert asking.cancelled()
    await store.close()


async def test_unresponsive_redis_fails_within_the_timeout(short_tmp_path: Path) -> None:
    server = EmbeddedRedis(short_tmp_path)
    server.start()
    server.wait_ready()
    store = Ephemeral.connect(server.url, timeout_s=0.1)
    await wait_until(lambda: _answers(store))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(store.get("x"), PATIENCE_S)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await wait_until(lambda: _answers(store))
    await store.close()
    server.stop()


async def _answers(store: Ephemeral) -> bool:
    try:
        await store.ping()
    except StoreUnavailable:
        return False
    return True


async def test_stopped_redis_is_unavailable_until_it_restarts(short_tmp_path: Path) -> None:
    server = EmbeddedRedis(short_tmp_path)
    server.start()
    server.wait_ready()
    store = Ephemeral.connect(server.url, timeout_s=30.0)
    listener = store.subscribe("channel")
    assert await anext(listener) == b""
    server.stop()
    with pytest.raises(StoreUnavailable):
        await anext(listener)
    for attempt in (
        store.ping(),
        store.announce("nodes", "a", b"", 5),
        store.present("nodes"),
        store.publish("x", b""),
    ):
        with pytest.raises(StoreUnavailable):
            await attempt
    server.start()
    server.wait_ready()
    await store.ping()
    await store.close()
    server.stop()


@pytest.mark.parametrize("url", ["", "http://x", "/tmp/redis.sock"])
def test_unsupported_url_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="scheme"):
        Ephemeral.connect(url)


async def test_reset_connection_is_unavailable_and_other_runtime_errors_propagate() -> None:
    """uvloop raises RuntimeError for a reset connection, and drivers pass the error on."""
    lost = "unable to perform operation on <TCPTransport closed=True reading=False>; the handler is closed"
    for text, expected in ((lost, StoreUnavailable), ("something else", RuntimeError)):
        for translated in (ephemeral_module._translated, database_module._translated):
            with pytest.raises(expected), translated():
                raise RuntimeError(text)
