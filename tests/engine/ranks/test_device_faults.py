"""A rank whose device fails: it logs the fault and exits, and its sequences end as after any crash."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import Raw

from engine.config import EngineConfig
from engine.devices.fake import CUDA_ERRORS, NO_CONTEXT, OUT_OF_MEMORY, FakeDevice
from engine.kernels.device import DeviceKernels
from engine.loop import Engine
from engine.processes.zygote import Zygote
from engine.protocol.sampling import Sampling
from engine.ranks import rank, wire
from engine.ranks.output import SequenceOutput
from engine.ranks.replica import Replica, ReplicaDeviceLost, ReplicaLoadError
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest
from tests.engine import one_thread  # noqa: F401
from tests.fakes.rank import OUT_OF_MEMORY_WHILE_LOADING
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPARK = Path(__file__).parents[3] / "catalog/builtin/spark"
CONFIG = EngineConfig(model_dir=SPARK, dtype="float32", num_blocks=64, max_sequences=4, max_step_tokens=64)
PROMPT = np.arange(3, 20, dtype=np.int32)
FAULTS = {OUT_OF_MEMORY: "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free."}
FAULTS |= {fault: f"CUDA error {code}: {text}" for fault, (code, text) in CUDA_ERRORS.items()}


def request_of(sequence_id: int) -> SequenceRequest:
    return SequenceRequest(sequence_id, PROMPT, Sampling(max_tokens=20, temperature=0.0, ignore_eos=True), b"n" * 32, 1)


@asynccontextmanager
async def opened(zygote: Zygote, fault: str) -> AsyncIterator[tuple[Replica, list[str]]]:
    exits: list[str] = []
    config = replace(CONFIG, device=f"fake {fault}")
    replica = await Replica.start(zygote, config, "r1", exits.append, entry="tests.fakes.rank:on_fake_device")
    try:
        yield replica, exits
    finally:
        await replica.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_rank_logs_device_error_and_step_and_does_not_go_on(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    device = FakeDevice(fault, at_step=3)
    engine = Engine(Runner(CONFIG, DeviceKernels(), steps_device=device), CONFIG)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(wire.encode_frame(wire.Work([Raw(wire.encode_request(request_of(1)))])))
        with pytest.raises((torch.AcceleratorError, torch.OutOfMemoryError)):
            rank.serve(ours, engine, "cuda:0")
    (record,) = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert record.message == "device failed"
    assert record.__dict__["device"] == "cuda:0"
    assert record.__dict__["error"] == FAULTS[fault]
    assert 2 <= record.__dict__["step"] <= 4
    assert engine.sequences.get(1) is not None, "no smaller batch is tried"


@pytest.mark.parametrize("fault", FAULTS)
async def test_sequences_crash_and_are_not_ended_otherwise(zygote: Zygote, fault: str) -> None:
    outputs: list[SequenceOutput] = []
    ended = asyncio.Event()

    def sink(output: SequenceOutput) -> None:
        outputs.append(output)
        if output.finish:
            ended.set()

    async with opened(zygote, fault) as (replica, exits):
        replica.add(request_of(1), sink)
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        assert outputs[-1].finish == "crashed"
        assert 1 <= sum(len(output.token_ids) for output in outputs) < 20
        assert not replica.is_alive
    assert exits in ([], ["the rank process ended with exit code 1"])


async def test_device_without_a_context_is_reported_as_lost(zygote: Zygote) -> None:
    with pytest.raises(ReplicaDeviceLost, match="cuda:0 cannot create a context: CUDA error: no CUDA-capable device"):
        async with opened(zygote, NO_CONTEXT):
            pass


async def test_shortage_while_loading_states_bytes_and_setting(zygote: Zygote) -> None:
    with pytest.raises(ReplicaLoadError, match=r"an allocation needs 2.00 GiB, and \d+ bytes .* free .* lower HEARTH"):
        async with opened(zygote, OUT_OF_MEMORY_WHILE_LOADING):
            pass
