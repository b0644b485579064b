"""Many adapters with room for few: every sequence gets the same tokens as with room for all, and no reference leaks."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.adapters.local_adapter import LocalAdapter
from engine.config import EngineConfig
from engine.processes.zygote import Zygote
from engine.protocol.sampling import Sampling
from engine.ranks.replica import Replica
from engine.scheduling.sequence import SequenceRequest
from tests.engine.adapters.made import named, random_matrices, save_adapter
from tests.engine.caller import collect_outputs, token_ids_of
from tests.engine.structured.spark_engine import NAMESPACE, SPARK
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_ADAPTERS, NUM_CALLS, NUM_STREAMS = 40, 100, 16
CONFIG = EngineConfig(model_dir=SPARK, dtype="float32", num_blocks=256)
PROMPTS = [np.random.default_rng(number).integers(4, 400, 20 + number).astype(np.int32) for number in range(8)]
GREEDY = Sampling(max_tokens=16, temperature=0.0, ignore_eos=True)


class Callers:
    """Runs sequences on one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._next_id = 0

    async def ask(
        self, number: int, adapter: LocalAdapter, abort_after_s: float | None = None
    ) -> tuple[list[int], str | None]:
        """Return tokens and finish; the sequence is aborted after `abort_after_s`."""
        self._next_id += 1
        prompt = PROMPTS[number % len(PROMPTS)]
        request = SequenceRequest(self._next_id, prompt, GREEDY, NAMESPACE, number % 3, adapter=adapter)
        outputs = await collect_outputs(self._replica, request, timeout_s=100, abort_after_s=abort_after_s)
        return token_ids_of(outputs), outputs[-1].finish


@pytest.mark.full
async def test_forty_adapters_and_room_for_three(zygote: Zygote, tmp_path: Path) -> None:
    rng = random.Random(1)
    roomy = await Replica.start(zygote, CONFIG, "r1", lambda _: None)
    sites = named(roomy.info.adapter_sites, ["q_proj", "v_proj"])
    adapters = [save_adapter(tmp_path / str(seed), random_matrices(sites, 8, seed)) for seed in range(NUM_ADAPTERS)]
    calls = [(number, rng.randrange(NUM_ADAPTERS)) for number in range(NUM_CALLS)]
    calls += [(number, rng.randrange(2)) for number in range(NUM_CALLS // 2)]  # two that many want
    rng.shuffle(calls)
    callers = Callers(roomy)
    wanted = sorted({(number % len(PROMPTS), adapter) for number, adapter in calls})
    responses = await asyncio.gather(*(callers.ask(number, adapters[adapter]) for number, adapter in wanted))
    expected = dict(zip(wanted, responses, strict=True))
    await roomy.close()

    size_bytes = sum(8 * sum(shape) * 4 for shape in sites.values())
    crowded = await Replica.start(zygote, replace(CONFIG, adapter_memory_bytes=size_bytes * 7 // 2), "r1", print)
    callers, places = Callers(crowded), asyncio.Semaphore(NUM_STREAMS)
    most_waiting = 0

    async def call(number: int, adapter: int) -> None:
        nonlocal most_waiting
        async with places:
            abort_after_s = rng.random() * 0.3 if rng.random() < 0.25 else None
            tokens, finish = await callers.ask(number, adapters[adapter], abort_after_s)
            most_waiting = max(most_waiting, crowded.status().num_waiting)
        whole, _ = expected[number % len(PROMPTS), adapter]
        assert finish == "length" or (finish == "aborted" and abort_after_s is not None)
        assert tokens == (whole if finish == "length" else whole[: len(tokens)])

    await asyncio.gather(*(call(*each) for each in calls))
    assert most_waiting > 3, "they waited for each other"
    await wait_until(lambda: crowded.status().num_running + crowded.status().num_waiting == 0)
    status = crowded.status()
    assert status.num_free_blocks + status.num_cached_blocks == status.num_blocks
    await crowded.close()
