"""A real node whose bucket returns wrong bytes, and one whose id is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.protocol.events import Finished
from engine.protocol.tasks.text_generation import TextGeneration
from storage.embedded_redis import EmbeddedRedis
from tests.engine.node.node_process import STORIES, NodeProcess, publish_stories
from tests.engine.node.wire_client import execute
from tests.waiting import wait_until

pytestmark = pytest.mark.full


async def test_wrong_bytes_of_the_bucket_are_never_used_and_the_model_loads_once_they_are_right(
    short_tmp_path: Path, test_data: Path
) -> None:
    bucket = short_tmp_path / "objects"
    revision = await publish_stories(f"file://{bucket}", test_data)
    weights = max((path for path in bucket.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    right = weights.read_bytes()
    weights.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    node = NodeProcess(short_tmp_path, f"file://{bucket}").start()
    try:
        await wait_until(lambda: '"model unavailable"' in node.log, 110)
        replica = await node.replica()
        assert replica.state in ("failed", "loading")  # loading is retried
        assert f"model.safetensors of {STORIES} is damaged in the object store" in node.log
        assert not list((short_tmp_path / "cache" / "blobs").glob(f"*{weights.name}*"))
        weights.write_bytes(right)
        await node.ready()
        client = await node.connect()
        client.send(execute(1, TextGeneration(prompt="Once"), model=STORIES, revision=revision, deadline_s=60))
        assert isinstance((await client.all_events(1))[-1], Finished)
        await client.close()
    finally:
        node.stop()


async def test_second_process_with_the_id_of_a_node_ends_and_the_first_one_serves_on(
    short_tmp_path: Path, test_data: Path, own_redis_server: EmbeddedRedis
) -> None:
    url = f"file://{short_tmp_path / 'objects'}"
    await publish_stories(url, test_data)
    for name in ("a", "b"):
        (short_tmp_path / name).mkdir()
    first = await NodeProcess(short_tmp_path / "a", url, REDIS_URL=own_redis_server.url).start().ready()
    second = NodeProcess(short_tmp_path / "b", url, REDIS_URL=own_redis_server.url, HEARTH_LOG_LEVEL="error").start()
    try:
        assert await second.exit_code(110) == 2
        assert second.log.count("\n") == 1, second.log
        assert f"HEARTH_NODE_ID: another node announces itself as n1 from {first.address}" in second.log
        assert await first.ready()
    finally:
        second.stop()
        first.stop()
