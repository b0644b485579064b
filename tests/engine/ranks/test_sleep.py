"""A rank that sleeps and wakes: a real process, with its model in virtual memory of a fake device."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from engine.config import EngineConfig
from engine.processes.zygote import Zygote
from engine.ranks.replica import ReplicaLoadError
from engine.report import SleepFailed
from engine.serving.snapshots import Snapshots
from tests.engine.made_checkpoints import save_random
from tests.engine.ranks.test_replica import CONFIG, ReplicaClient, opened, prompt_of
from tests.fakes.runner import expected_tokens
from tests.processes import is_running
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    transformers.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("model")
    save_random("llama 3 with scaled positions", folder)
    size = 16 << 20
    return EngineConfig(
        model_dir=folder, dtype="float32", num_blocks=16, max_sequences=4, max_step_tokens=64, device=f"fake {size}"
    )


async def tokens_of(client: ReplicaClient, **sampling: object) -> list[int]:
    _, recorder = client.add(list(range(3, 20)), max_tokens=8, ignore_eos=True, **sampling)
    assert await recorder.end() == "length"
    return recorder.token_ids


async def test_a_model_in_a_process_sleeps_and_wakes(zygote: Zygote, model: EngineConfig) -> None:
    snapshots = Snapshots()
    snapshot = snapshots.open("r1", None)
    async with opened(zygote, "in_fake_memory", model) as client:
        replica = client.replica
        assert replica.info.can_sleep
        greedy, drawn = await tokens_of(client, temperature=0.0), await tokens_of(client, temperature=1.0, seed=5)
        asleep = await replica.sleep(snapshot)
        assert asleep.host_bytes == os.stat(snapshot).st_size > 0
        _, refused = client.add(prompt_of(5), max_tokens=2)
        assert await refused.end() == "out_of_capacity"
        assert not (await replica.wake()).is_asleep
        assert await tokens_of(client, temperature=0.0) == greedy
        assert await tokens_of(client, temperature=1.0, seed=5) == drawn
        assert replica.status().num_cached_blocks > 0
        snapshots.close("r1", None)  # the rank keeps what it has mapped
        await replica.sleep("/nowhere")
        await replica.wake()
        assert await tokens_of(client, temperature=0.0) == greedy


async def test_a_model_with_a_draft_model_cannot_sleep(zygote: Zygote) -> None:
    async with opened(zygote, "working", replace(CONFIG, speculation="draft:x")) as client:
        assert not client.replica.info.can_sleep


async def test_open_sequences_end_before_the_rank_sleeps(zygote: Zygote) -> None:
    async with opened(zygote, "slow") as client:
        sequence_id, aborted = client.add(prompt_of(30), max_tokens=400, ignore_eos=True)
        await asyncio.wait_for(aborted.began.wait(), PATIENCE_S)
        _, running = client.add(prompt_of(20, 1), max_tokens=10, ignore_eos=True)
        client.replica.abort(sequence_id)
        report = await client.replica.sleep("")
        assert report.is_asleep
        assert (await aborted.end(), await running.end()) == ("aborted", "length")
        assert running.token_ids == expected_tokens(prompt_of(20, 1), 10, ignore_end=True)
        await client.replica.wake()
        _, after = client.add(prompt_of(20, 1), max_tokens=10, ignore_eos=True)
        assert await after.end() == "length"
        assert after.token_ids == running.token_ids


async def test_a_sleep_that_fails_leaves_the_model_awake(zygote: Zygote, model: EngineConfig, tmp_path: Path) -> None:
    """The snapshot is a file with other content."""
    wrong = tmp_path / "snapshot"
    wrong.write_bytes(b"x" * 100)
    async with opened(zygote, "in_fake_memory", model) as client:
        expected = await tokens_of(client, temperature=0.0)
        with pytest.raises(SleepFailed, match="weights of another size"):
            await client.replica.sleep(str(wrong))
        assert await tokens_of(client, temperature=0.0) == expected


@pytest.mark.parametrize("change", ["sleep", "wake"])
async def test_a_rank_killed_while_it_sleeps_or_wakes_is_reported(zygote: Zygote, change: str) -> None:
    async with opened(zygote) as client:
        replica = client.replica
        if change == "wake":
            await replica.sleep("")
        os.kill(replica.pid, signal.SIGSTOP)
        pending = asyncio.create_task(replica.sleep("") if change == "sleep" else replica.wake())
        await asyncio.sleep(0.01)
        os.kill(replica.pid, signal.SIGKILL)
        with pytest.raises(ReplicaLoadError, match=r"^the rank process has ended$"):
            await pending
        await wait_until(lambda: client.exits == ["the rank process was killed by signal 9"])
        with pytest.raises(ReplicaLoadError):
            await replica.wake()


async def test_a_rank_that_hangs_while_it_wakes_is_killed(zygote: Zygote) -> None:
    async with opened(zygote, config=replace(CONFIG, step_timeout_s=0.4)) as client:
        await client.replica.sleep("")
        os.kill(client.replica.pid, signal.SIGSTOP)
        with pytest.raises(ReplicaLoadError):
            await asyncio.wait_for(client.replica.wake(), PATIENCE_S)
        await wait_until(lambda: len(client.exits) == 1)
        assert "did not respond" in client.exits[0]


async def test_a_sleeping_rank_ends_with_its_replica(zygote: Zygote) -> None:
    async with opened(zygote) as client:
        pid = client.replica.pid
        await client.replica.sleep("")
    await wait_until(lambda: not is_running(pid))
    assert client.exits == []
