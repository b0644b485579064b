"""A replica with helpers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.processes import child_link as module
from engine.processes.zygote import Zygote
from engine.protocol.sampling import Sampling
from engine.ranks.output import SequenceOutput
from engine.ranks.replica import Replica, ReplicaLoadError
from engine.scheduling.sequence import SequenceRequest
from tests.fakes.rank import CRASH_TOKEN
from tests.fakes.runner import expected_tokens
from tests.processes import are_at_rest, is_running, open_files
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = EngineConfig(model_dir=Path("/nowhere"), max_sequences=8, max_step_tokens=64)


class OutputRecorder:
    """A sink that stores its outputs and can be awaited."""

    def __init__(self) -> None:
        self.outputs: list[SequenceOutput] = []
        self.ended = asyncio.Event()
        self.began = asyncio.Event()

    def __call__(self, output: SequenceOutput) -> None:
        assert not self.ended.is_set(), "an output after the end"
        self.outputs.append(output)
        self.began.set()
        if output.finish:
            self.ended.set()

    async def end(self) -> str | None:
        await asyncio.wait_for(self.ended.wait(), PATIENCE_S)
        return self.outputs[-1].finish

    @property
    def token_ids(self) -> list[int]:
        return [token_id for output in self.outputs for token_id in output.token_ids]


class ReplicaClient:
    """Adds sequences to a replica and records its exits."""

    def __init__(self, replica: Replica, exits: list[str]) -> None:
        self.replica = replica
        self.exits = exits
        self._next_id = 0

    def add(self, prompt: list[int], **sampling: object) -> tuple[int, OutputRecorder]:
        self._next_id += 1
        recorder = OutputRecorder()
        array = np.array(prompt, dtype=np.int32)
        request = SequenceRequest(self._next_id, array, Sampling(**sampling), b"n" * 32, 1)  # type: ignore[arg-type]
        self.replica.add(request, recorder)
        return self._next_id, recorder


@asynccontextmanager
async def opened(zygote: Zygote, entry: str = "working", config: EngineConfig = CONFIG) -> AsyncIterator[ReplicaClient]:
    exits: list[str] = []
    replica = await Replica.start(zygote, config, "r1", exits.append, entry=f"tests.fakes.rank:{entry}")
    try:
        yield ReplicaClient(replica, exits)
    finally:
        await replica.close()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(20, 900, length).tolist()


async def test_tokens_arrive_step_by_step_and_the_last_output_has_a_finish(zygote: Zygote):
    async with opened(zygote) as client:
        _, recorder = client.add(prompt_of(30), max_tokens=12, ignore_eos=True)
        assert recorder.outputs == []
        assert await recorder.end() == "length"
        assert recorder.token_ids == expected_tokens(prompt_of(30), 12, ignore_end=True)
        assert len(recorder.outputs) == 12
        assert client.replica.num_open == 0


async def test_replica_reports_info_and_status(zygote: Zygote):
    async with opened(zygote) as client:
        assert client.replica.info.max_model_len == 512
        assert client.replica.info.eos_token_ids == (0,)
        assert client.replica.status().num_free_blocks == 64
        _, recorder = client.add(prompt_of(30), max_tokens=5, ignore_eos=True)
        await recorder.end()
        status = client.replica.status()
        assert (status.num_running, status.queued_tokens, status.num_computed_tokens) == (0, 0, 34)
        assert status.num_cached_blocks == 2


async def test_hundred_concurrent_sequences_get_their_own_tokens(zygote: Zygote):
    async with opened(zygote) as client:
        prompts = [prompt_of(5 + seed, seed) for seed in range(100)]
        recorders = [client.add(prompt, max_tokens=10)[1] for prompt in prompts]
        for prompt, recorder in zip(prompts, recorders, strict=True):
            assert await recorder.end() in ("stop", "length")
            assert recorder.token_ids == expected_tokens(prompt, 10)


async def test_cached_tokens_and_logprobs_arrive(zygote: Zygote):
    async with opened(zygote) as client:
        for num_cached in (0, 48):
            _, recorder = client.add(prompt_of(60), max_tokens=2, logprobs=2, ignore_eos=True)
            await recorder.end()
            first = recorder.outputs[0]
            token_id = first.token_ids[0]
            assert first.num_cached_tokens == num_cached
            assert first.logprobs[0].logprob == -token_id
            assert first.logprobs[0].top == ((token_id, -token_id), (token_id + 1, -token_id - 1))
        _, recorder = client.add(prompt_of(60), max_tokens=2)
        await recorder.end()
        assert recorder.outputs[0].logprobs == ()


async def test_an_abort_ends_the_sequence_and_frees_its_blocks(zygote: Zygote):
    async with opened(zygote, "slow") as client:
        sequence_id, recorder = client.add(prompt_of(30), max_tokens=450, ignore_eos=True)
        await recorder.began.wait()
        client.replica.abort(sequence_id)
        assert await recorder.end() == "aborted"
        assert len(recorder.token_ids) < 450
        status = client.replica.status()
        assert (status.num_running, status.num_free_blocks + status.num_cached_blocks) == (0, 64)
        client.replica.abort(sequence_id)


async def test_abort_in_the_same_turn_as_the_add_computes_nothing(zygote: Zygote):
    async with opened(zygote) as client:
        sequence_id, recorder = client.add(prompt_of(30), max_tokens=50)
        client.replica.abort(sequence_id)
        assert await recorder.end() == "aborted"
        assert client.replica.status().num_computed_tokens == 0


async def test_invalid_requests_end_with_an_error_and_the_rank_continues(zygote: Zygote):
    async with opened(zygote) as client:
        bad = [
            client.add([], max_tokens=3),
            client.add([-5], max_tokens=3),
            client.add([3], temperature=float("nan")),
            client.add([3], temperature="warm"),
            client.add([3], seed=2**70),
        ]
        for _, recorder in bad:
            assert await recorder.end() == "error"
        _, recorder = client.add(prompt_of(10), max_tokens=4)
        assert await recorder.end() in ("stop", "length")
        assert client.exits == []


async def test_failing_sink_aborts_only_its_own_sequence(zygote: Zygote, caplog):
    def failing(output: SequenceOutput) -> None:
        raise RuntimeError("no recorder")

    async with opened(zygote) as client:
        request = SequenceRequest(900, np.array([5], np.int32), Sampling(max_tokens=400), b"n", 1)
        client.replica.add(request, failing)
        _, recorder = client.add(prompt_of(10), max_tokens=20, ignore_eos=True)
        assert await recorder.end() == "length"
        await wait_until(lambda: client.replica.status().num_running == 0)
        assert client.replica.num_open == 0


async def test_killed_rank_ends_every_sequence_as_crashed_and_reports_its_exit_once(zygote: Zygote, caplog):
    async with opened(zygote, "slow") as client:
        recorders = [client.add(prompt_of(30, seed), max_tokens=450, ignore_eos=True)[1] for seed in range(12)]
        await recorders[0].began.wait()
        os.kill(client.replica.pid, signal.SIGKILL)
        assert {await recorder.end() for recorder in recorders} == {"crashed"}
        await wait_until(lambda: client.exits)
        _, late = client.add([3], max_tokens=1)
        assert await late.end() == "crashed"
        assert not client.replica.is_alive
    assert client.exits == ["the rank process was killed by signal 9"]


async def test_an_error_in_a_step_ends_the_rank_with_a_traceback_and_no_content(capfd, caplog):
    zygote = Zygote(preload=("tests.fakes.rank",))
    try:
        async with opened(zygote, "crashing") as client:
            _, healthy = client.add(prompt_of(10), max_tokens=450, ignore_eos=True)
            await healthy.began.wait()
            _, recorder = client.add([CRASH_TOKEN], max_tokens=3)
            assert await recorder.end() == "crashed"
            assert await healthy.end() == "crashed"
            await wait_until(lambda: client.exits == ["the rank process ended with exit code 1"])
    finally:
        await zygote.close()
    log = capfd.readouterr().err
    assert "RuntimeError" in log
    assert "loop.py" in log
    assert "secret" not in log


@pytest.mark.parametrize("limit", ["still", "most patience"])
async def test_a_rank_that_hangs_is_killed_and_its_sequences_end_as_crashed(zygote: Zygote, monkeypatch, caplog, limit):
    """A stopped process uses no CPU time; an endless loop does, and gets the longer timeout."""
    monkeypatch.setattr(module, "BUSY_TIMEOUT_FACTOR", 100 if limit == "still" else 1)
    config = replace(CONFIG, step_timeout_s=0.4)
    async with opened(zygote, "working" if limit == "still" else "spinning", config) as client:
        if limit == "still":
            _, recorder = client.add(prompt_of(30), max_tokens=450, ignore_eos=True)
            await recorder.began.wait()
            os.kill(client.replica.pid, signal.SIGSTOP)
        _, late = client.add([CRASH_TOKEN], max_tokens=3)
        assert await late.end() == "crashed"
        await wait_until(lambda: client.exits)
        assert not is_running(client.replica.pid)
    assert client.exits == ["the rank process was killed: it did not respond for 0.4 s"]


async def test_idle_rank_is_not_considered_hung(zygote: Zygote, caplog):
    for _ in range(5):  # on a busy machine one may be so late with an answer that it is killed for that
        async with opened(zygote, config=replace(CONFIG, step_timeout_s=0.1)) as client:
            if [await is_well_after_silence(client) for _ in range(3)] == [True] * 3:
                return
    pytest.fail("each was killed")


async def is_well_after_silence(client: ReplicaClient) -> bool:
    _, recorder = client.add(prompt_of(30), max_tokens=3)
    await recorder.end()
    await asyncio.sleep(0.2)  # longer than a silence that would be too long
    return client.replica.is_alive


async def test_suspended_front_process_does_not_kill_its_rank(zygote: Zygote):
    """The check runs late, once, with unread frames in the socket: elapsed seconds do not count against the rank."""
    async with opened(zygote, config=replace(CONFIG, step_timeout_s=1.0)) as client:
        _, recorder = client.add(prompt_of(30), max_tokens=450, ignore_eos=True)
        await recorder.began.wait()
        time.sleep(1.5)  # noqa: ASYNC251 - the event loop stands still: that is the point
        assert await recorder.end() == "length"
        assert client.exits == []


async def test_model_that_cannot_be_loaded_raises_with_the_reason(zygote: Zygote):
    before = open_files()
    with pytest.raises(ReplicaLoadError, match=r"config\.json"):
        await Replica.start(zygote, CONFIG, "r1", lambda _: None)
    with pytest.raises(ReplicaLoadError, match="ended while loading"):
        await Replica.start(zygote, CONFIG, "r1", lambda _: None, entry="tests.fakes.child:leaving")
    assert open_files() <= before


async def test_cancelled_start_does_not_wait_for_a_loading_rank(zygote: Zygote, monkeypatch):
    monkeypatch.setattr(module, "EXIT_TIMEOUT_S", 3600.0)
    before = open_files()
    starting = asyncio.create_task(Replica.start(zygote, CONFIG, "r1", lambda _: None, entry="tests.fakes.child:deaf"))
    (pid,) = await wait_until(lambda: list(zygote._children))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_running(pid)
    assert open_files() <= before


async def test_drain_finishes_open_sequences_and_rejects_new_ones(zygote: Zygote):
    async with opened(zygote) as client:
        _, recorder = client.add(prompt_of(30), max_tokens=60, ignore_eos=True)
        draining = asyncio.ensure_future(client.replica.drain())
        await asyncio.sleep(0)
        _, late = client.add([3], max_tokens=1)
        await draining
        assert (await recorder.end(), await late.end()) == ("length", "aborted")
        await client.replica.drain()


async def test_close_ends_the_process_and_the_open_sequences(zygote: Zygote):
    async with opened(zygote, "slow") as client:
        _, recorder = client.add(prompt_of(30), max_tokens=450, ignore_eos=True)
        await recorder.began.wait()
        pid = client.replica.pid
        await client.replica.close()
        assert await recorder.end() == "aborted"
        assert not is_running(pid)
    assert client.exits == []


async def test_an_idle_rank_sleeps(zygote: Zygote):
    async with opened(zygote) as client:
        _, recorder = client.add(prompt_of(30), max_tokens=20)
        await recorder.end()
        assert zygote.pid is not None
        pids = (client.replica.pid, zygote.pid)
        await wait_until(lambda: are_at_rest(*pids))
