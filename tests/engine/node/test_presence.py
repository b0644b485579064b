"""Node presence: visible while the node lives, updated soon after a change, removed at shutdown, restored after a Redis
outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from engine.node import presence as module
from engine.node.presence import KIND, DuplicateNodeId, Presence
from engine.protocol.status import NodeStatus
from storage.embedded_redis import EmbeddedRedis
from storage.ephemeral import Ephemeral
from tests.waiting import PATIENCE_S, wait_until


class Beating:
    """Announces `status` as a node's presence."""

    def __init__(self, url: str, started_s: int = 1) -> None:
        self.ephemeral = Ephemeral.connect(url, timeout_s=PATIENCE_S)
        self.status = NodeStatus(
            node_id="n1", pop="lis", address=f"unix:///n{started_s}", started_s=started_s, instance=f"i{started_s}"
        )
        self.presence = Presence(self.ephemeral, "n1", lambda: self.status)

    async def seen(self) -> NodeStatus | None:
        payload = (await self.ephemeral.present(KIND)).get("n1")
        return None if payload is None else msgspec.json.decode(payload, type=NodeStatus)


@asynccontextmanager
async def beating(url: str) -> AsyncIterator[Beating]:
    node = Beating(url)
    task = asyncio.create_task(node.presence.run())
    yield node
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await node.ephemeral.close()


async def test_published_status_is_read_unchanged(redis_url: str) -> None:
    async with beating(redis_url) as node:
        assert await wait_until(node.seen) == node.status


async def test_status_change_is_published_before_the_next_heartbeat(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 60.0)
    async with beating(redis_url) as node:
        await wait_until(node.seen)
        node.status = msgspec.structs.replace(node.status, is_draining=True)
        node.presence.changed()

        async def is_draining() -> bool:
            return (seen := await node.seen()) is not None and seen.is_draining

        await wait_until(is_draining)


async def test_presence_of_a_dead_node_expires(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TTL_S", 0.3)
    async with beating(redis_url) as node:
        await wait_until(node.seen)
    observer = Beating(redis_url)

    async def is_gone() -> bool:
        return await observer.seen() is None

    await wait_until(is_gone)
    await observer.ephemeral.close()


async def test_leaving_node_disappears_at_once(redis_url: str) -> None:
    async with beating(redis_url) as node:
        await wait_until(node.seen)
    observer = Beating(redis_url)
    await observer.presence.withdraw()
    assert await observer.seen() is None
    await observer.ephemeral.close()


async def test_node_is_published_again_after_a_redis_outage(
    short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.1)
    redis = EmbeddedRedis(short_tmp_path)
    async with beating(redis.url) as node:
        await wait_until(lambda: "cannot be published" in caplog.text)
        await node.presence.withdraw()
        redis.start()
        await asyncio.to_thread(redis.wait_ready)
        await wait_until(node.seen)
    await asyncio.to_thread(redis.stop)


async def test_later_of_two_processes_with_one_node_id_stops(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.06)
    async with beating(redis_url) as first:
        await wait_until(first.seen)
        second = Beating(redis_url, started_s=2)
        with pytest.raises(DuplicateNodeId, match="another node announces itself as n1 from unix:///n1"):
            await asyncio.wait_for(second.presence.run(), PATIENCE_S)
        await second.ephemeral.close()

        async def is_first() -> bool:
            return await first.seen() == first.status

        await wait_until(is_first)
    assert [record.message for record in caplog.records] == ["another node has started with this node's id"]


async def test_restarted_process_replaces_the_announcement_of_the_killed_one(redis_url: str) -> None:
    async with beating(redis_url) as killed:
        await wait_until(killed.seen)
    again = Beating(redis_url, started_s=2)
    task = asyncio.create_task(again.presence.run())

    async def is_again() -> bool:
        return await again.seen() == again.status

    await wait_until(is_again)
    again.presence.changed()
    await asyncio.sleep(0.2)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await again.ephemeral.close()


async def test_cancellation_that_comes_together_with_a_change_ends_the_heartbeat(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MIN_GAP_S", 0.0)
    node = Beating(redis_url)
    task = asyncio.create_task(node.presence.run())
    await wait_until(node.seen)
    await asyncio.sleep(0.05)  # the heartbeat waits for a change
    node.presence.changed()
    await asyncio.sleep(0)  # the change has been seen, and the heartbeat has not continued yet
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await node.ephemeral.close()
    assert done
