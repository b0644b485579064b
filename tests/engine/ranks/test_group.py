"""Several ranks that share a model give the results of one rank, and end together."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import torch
import transformers

from engine.adapters.local_adapter import LocalAdapter
from engine.config import EngineConfig
from engine.kernels.native.chosen import find_native_kernels
from engine.processes.zygote import Zygote
from engine.protocol.output_format import Constraint
from engine.ranks import group as rank_group
from engine.ranks.replica import Replica, ReplicaLoadError
from tests.engine.adapters.made import random_matrices, save_adapter
from tests.engine.caller import Caller
from tests.engine.checkpoints.made_gguf import write_random
from tests.engine.made_checkpoints import KINDS, runner_of, save_random
from tests.engine.ranks.joined import NUM_GREEDY, Parity
from tests.engine.structured.schemas import INTEGER, STRING, record
from tests.engine.structured.spark_engine import SPARK
from tests.processes import are_at_rest, children_of, is_running
from tests.waiting import wait_until
from variants.recipe import make_recipe
from variants.variant import plan_variant, write_variant

pytestmark = pytest.mark.asyncio(loop_scope="module")

# One kind for each way in which a layer is divided. All other kinds take minutes and run in `make test-full`.
DIVIDED = ("tied, with biases", "wide heads", "cohere2", "deepseek v3", "gemma2", "gpt-oss", "llama4", "olmo2", "phi3",
           "qwen2 moe", "starcoder2")  # fmt: skip
CONFIG = EngineConfig(model_dir=SPARK, dtype="float32", num_blocks=256, tensor_parallel=2)

Compare = Callable[..., Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def compare(zygote: Zygote) -> AsyncIterator[Compare]:
    """Two ranks that are joined once for all models of this module."""
    transformers.logging.disable_progress_bar()
    child = await zygote.fork("tests.engine.ranks.joined:main")
    reader, writer = await asyncio.open_unix_connection(sock=child.socket)

    async def of(folder: Path, **settings: Any) -> Parity:
        writer.write(msgspec.json.encode({"model_dir": str(folder), **settings}) + b"\n")
        line = await asyncio.wait_for(reader.readline(), 120)
        return msgspec.json.decode(line, type=Parity)

    yield of
    writer.close()
    await writer.wait_closed()
    await child.end(5.0)


async def check(compare: Compare, folder: Path, **settings: Any) -> None:
    parity = await compare(folder, **settings)
    assert parity.error == ""
    assert parity.largest_logit > 0.5
    assert parity.largest_difference < 1e-4
    assert parity.shared_tokens == parity.whole_tokens


@pytest.mark.parametrize("kind", DIVIDED)
async def test_two_ranks_give_the_logits_and_tokens_of_one(compare: Compare, kind: str, tmp_path: Path) -> None:
    save_random(kind, tmp_path)
    await check(compare, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DIVIDED])
async def test_two_ranks_give_the_logits_of_one_for_every_other_architecture(
    compare: Compare, kind: str, tmp_path: Path
) -> None:
    save_random(kind, tmp_path)
    await check(compare, tmp_path)


async def test_quantized_model_is_sharded_after_dequantization(compare: Compare, tmp_path: Path) -> None:
    path, _ = write_random("llama 2", tmp_path, "Q4_0")
    await check(compare, path)


@pytest.mark.parametrize(
    ("number_format", "num_packed"), [pytest.param("int4", [18, 19], marks=pytest.mark.full), ("int8", [24, 25])]
)
async def test_variant_remains_packed_on_each_rank(
    compare: Compare, number_format: str, num_packed: list[int], tmp_path: Path
) -> None:
    """All matrices except the head stay packed. Logits are equal up to bfloat16 and the rounding of each rank's
    inputs."""
    recipe = make_recipe(number_format, None)
    write_variant(SPARK, plan_variant(SPARK, recipe), tmp_path)
    parity = await compare(tmp_path, dtype="auto")
    assert parity.error == ""
    kernels = find_native_kernels()
    if kernels is not None and kernels.has_packed:
        assert parity.num_packed == num_packed
    assert 0 < parity.largest_difference < parity.largest_logit / 15


# The kind, and whether there is room for one adapter at a time or for all.
ADAPTED = [
    ("tied, with biases", False),
    pytest.param("phi3", True, marks=pytest.mark.full),
    pytest.param("deepseek v3", True, marks=pytest.mark.full),
    pytest.param("qwen2 moe", True, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("kind", "is_roomy"), ADAPTED)
async def test_ranks_apply_their_parts_of_adapters(compare: Compare, kind: str, is_roomy: bool, tmp_path: Path) -> None:
    save_random(kind, tmp_path / "base")
    bank = runner_of(tmp_path / "base").adapters
    assert bank is not None
    made = [random_matrices(bank.sites, 4, seed) for seed in range(3)]
    folders = [save_adapter(tmp_path / str(seed), each).folder for seed, each in enumerate(made)]
    size_bytes = 8 * 4 * sum(map(sum, bank.sites.values()))  # padded to a rank of 8, float32
    room = size_bytes * 8 if is_roomy else size_bytes * 3 // 2
    parity = await compare(tmp_path / "base", adapters=folders, adapter_memory_bytes=room)
    assert parity.error == ""
    assert parity.shared_tokens == parity.whole_tokens
    alone = await compare(tmp_path / "base")
    assert parity.shared_tokens[0] != alone.shared_tokens[0], "the adapter changes what is said"
    assert [len(tokens) for tokens in parity.shared_tokens] == [NUM_GREEDY] * 8, "each waits until there is room"


# ── the group as one replica ──


class ReplicaClient:
    """A replica of the built-in model."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._caller = Caller(replica)

    async def ask(self, text: str, **more: Any) -> tuple[str, str]:
        """Return the completion's text and its finish."""
        text, outputs = await self._caller.ask(text, **{"max_tokens": 40, "temperature": 0.0, **more})
        return text, outputs[-1].finish or ""


class Group(ReplicaClient):
    """A replica with two ranks, and the exit lines it reported."""

    def __init__(self, replica: Replica, exits: list[str]) -> None:
        super().__init__(replica)
        self.exits = exits
        (self.follower,) = children_of(replica.pid)[:1]


@asynccontextmanager
async def opened(
    zygote: Zygote, config: EngineConfig = CONFIG, entry: str = "engine.ranks.rank:main"
) -> AsyncIterator[Group]:
    exits: list[str] = []
    replica = await Replica.start(zygote, config, "r1", exits.append, entry=entry)
    try:
        yield Group(replica, exits)
    finally:
        await replica.close()


async def test_group_serves_like_one_rank_and_reports_its_size(zygote: Zygote, tmp_path: Path) -> None:
    questions = [
        "What is the capital of France?",
        "Count to ten.",
        "Repeat the following: the red house stands in the garden, and the red house stands in the garden.",
    ]
    person = Constraint("json_schema", json.dumps(record(name=STRING, age=INTEGER)))
    results = []
    for num_ranks, speculation in ((1, "off"), (2, "off"), (2, "prompt_lookup")):
        config = replace(CONFIG, tensor_parallel=num_ranks, speculation=speculation)
        replica = await Replica.start(zygote, config, "r1", lambda _: None)
        client = ReplicaClient(replica)
        results.append(await asyncio.gather(*(client.ask(question) for question in questions)))
        results[-1].append(await client.ask("Describe a person.", constraint=person, max_tokens=60))
        results[-1].append(await client.ask("Hello!", seed=5, temperature=0.9))
        status = replica.status()
        assert (status.num_ranks, status.num_drafted > 0) == (num_ranks, speculation != "off")
        assert f"-tp{num_ranks}-" in replica.info.layout_tag
        assert replica.info.architecture == "LlamaForCausalLM"
        adapter = save_adapter(tmp_path, random_matrices(replica.info.adapter_sites, 4, seed=3))
        results[-1].append(await client.ask("Hello!", adapter=adapter))
        assert (await client.ask("Hello!", adapter=LocalAdapter("a" * 64, "/nowhere")))[1] == "bad_adapter"
        await replica.close()
    assert results[0] == results[1] == results[2]
    assert results[0][5][1] in ("stop", "length")
    assert json.loads(results[1][3][0])["age"] is not None


@pytest.mark.parametrize("killed_rank", ["follower", "leader"])
async def test_a_rank_that_dies_ends_the_group_and_every_sequence(
    zygote: Zygote, killed_rank: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with opened(zygote) as client:
        response = asyncio.ensure_future(client.ask("Tell me a story.", max_tokens=2000, ignore_eos=True))
        await wait_until(lambda: client.replica.status().num_steps > 3)
        os.kill(client.follower if killed_rank == "follower" else client.replica.pid, signal.SIGKILL)
        assert (await response)[1] == "crashed"
        await wait_until(
            lambda: client.exits and not is_running(client.follower) and not is_running(client.replica.pid)
        )


async def test_death_of_an_idle_follower_ends_the_group(zygote: Zygote, capfd: pytest.CaptureFixture[str]) -> None:
    async with opened(zygote) as client:
        os.kill(client.follower, signal.SIGKILL)
        await wait_until(lambda: client.exits == ["the rank process ended with exit code 1"])


async def test_hung_follower_is_detected_and_the_group_killed(
    zygote: Zygote, capfd: pytest.CaptureFixture[str]
) -> None:
    async with opened(zygote, replace(CONFIG, step_timeout_s=0.4)) as client:
        os.kill(client.follower, signal.SIGSTOP)
        assert (await client.ask("Hello!"))[1] == "crashed"
        await wait_until(lambda: client.exits and not is_running(client.follower))
    assert client.exits[0].startswith("the rank process was killed: it did not respond for")


async def test_idle_group_sleeps_and_exits_on_close(zygote: Zygote) -> None:
    async with opened(zygote) as client:
        await client.ask("Hello!", max_tokens=3)
        pids = (client.replica.pid, client.follower)
        await wait_until(lambda: are_at_rest(*pids))
    await wait_until(lambda: not any(is_running(pid) for pid in pids))
    assert client.exits == []


async def test_follower_that_dies_before_joining_fails_the_load(
    zygote: Zygote, capfd: pytest.CaptureFixture[str]
) -> None:
    starting = Replica.start(
        zygote, CONFIG, "r1", lambda _: None, entry="tests.engine.ranks.joined:with_a_follower_that_dies"
    )
    with pytest.raises(ReplicaLoadError, match="rank 1 of 2 was killed by signal 9 while loading"):
        await asyncio.wait_for(starting, 30)  # half of what meeting may take


@pytest.mark.parametrize(
    ("num_ranks", "message"),
    [(3, "num_attention_heads=4: not a multiple of tensor_parallel=3"), (2, "rank 1: WeightsError: not mine")],
)
async def test_model_that_cannot_be_sharded_is_rejected_with_the_reason(
    zygote: Zygote, num_ranks: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    entry = "engine.ranks.rank:main" if num_ranks == 3 else "tests.engine.ranks.joined:with_a_poor_follower"
    with pytest.raises(ReplicaLoadError, match=message):
        await Replica.start(zygote, replace(CONFIG, tensor_parallel=num_ranks), "r1", lambda _: None, entry=entry)


async def test_automatic_kv_memory_of_ranks_is_settled_by_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 2000)
    monkeypatch.setattr(rank_group, "free_memory_bytes", lambda _device: 5000)
    auto = EngineConfig(tmp_path, kv_memory_bytes=0, is_kv_auto=True, tensor_parallel=2)
    settled = rank_group._settle_kv(auto, torch.device("cpu"))
    assert (settled.kv_memory_bytes, settled.is_kv_auto) == (int(0.85 * (2 * 5000 - 2000)), False)
    assert rank_group._settle_kv(replace(auto, kv_memory_bytes=900), torch.device("cpu")).kv_memory_bytes == 900
    given = replace(auto, kv_memory_bytes=70, is_kv_auto=False)
    assert rank_group._settle_kv(given, torch.device("cpu")) == given
