"""Entry points for the zygote: ranks over the fake runner."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import torch

from engine.config import EngineConfig
from engine.devices.assignment import make_current
from engine.devices.fake import NO_CONTEXT, OUT_OF_MEMORY, FakeDevice
from engine.devices.fake_memory import FakeMemory
from engine.devices.recorded import RecordedDevice, as_kernel
from engine.devices.virtual_arena import VirtualArena
from engine.inputs import StepInputs, StepOutput
from engine.kernels import torch_attention
from engine.kernels.device import DeviceKernels
from engine.kernels.launch import Backend
from engine.loop import Engine
from engine.ranks import rank, wire
from engine.runner import Runner
from tests.fakes.runner import FakeRunner

OUT_OF_MEMORY_WHILE_LOADING = "out of memory while loading"
CRASH_TOKEN = 13  # a prompt with this token kills a `crashing` rank


def working(connection: socket.socket, arguments: bytes) -> None:
    """Run a normal rank over the fake runner."""
    _serve(connection, arguments, FakeRunner())


def slow(connection: socket.socket, arguments: bytes) -> None:
    """Run a rank that is as slow as a large model, so that tests can act in the middle of its output."""
    _serve(connection, arguments, _UnhurriedRunner())


def crashing(connection: socket.socket, arguments: bytes) -> None:
    """Run a rank whose device fails on CRASH_TOKEN."""
    _serve(connection, arguments, _CrashingRunner())


def spinning(connection: socket.socket, arguments: bytes) -> None:
    """Run a rank that computes forever on CRASH_TOKEN."""
    _serve(connection, arguments, _SpinningRunner())


def on_fake_device(connection: socket.socket, arguments: bytes) -> None:
    """Run a rank over the fake device. `device` of the config is "fake" with the fault that it has from step 3 on."""

    def load(config: EngineConfig, _: socket.socket) -> tuple[Runner, tuple[int, ...]]:
        fault = config.device.removeprefix("fake ")
        device = FakeDevice(fault, at_step=3)
        if fault == NO_CONTEXT:
            torch.cuda.set_device = device.create_context  # type: ignore[assignment]
            make_current(torch.device("cuda", 0))
        if fault == OUT_OF_MEMORY_WHILE_LOADING:
            device.at_step = 0
            device.fault = OUT_OF_MEMORY
            device.event().record()
        return Runner(replace(config, device="cpu"), DeviceKernels(), steps_device=device), ()

    rank.load = load  # type: ignore[attr-defined, assignment]
    rank.main(connection, arguments)


def in_fake_memory(connection: socket.socket, arguments: bytes) -> None:
    """Run a rank whose model is in virtual memory of a fake device. `device` of the config is "fake" with its size."""

    def load(config: EngineConfig, _: socket.socket) -> tuple[Runner, tuple[int, ...]]:
        backend = torch_attention.BACKEND
        launches = {name: as_kernel(getattr(backend, name)) for name in ("store", "chunks", "split", "decode")}
        torch_attention.BACKEND = Backend(**launches)
        arena = VirtualArena(FakeMemory(int(config.device.removeprefix("fake "))))
        config = replace(config, device="cpu")
        return Runner(config, DeviceKernels(), steps_device=RecordedDevice(), arena=arena), ()

    rank.load = load  # type: ignore[attr-defined, assignment]
    rank.main(connection, arguments)


def _serve(connection: socket.socket, arguments: bytes, runner: FakeRunner) -> None:
    config, revision = wire.decode_arguments(arguments)
    engine = Engine(runner, config, revision)
    connection.sendall(wire.encode_frame(wire.Loaded(engine.info, engine.status())))
    rank.serve(connection, engine)


class _UnhurriedRunner(FakeRunner):
    def run(self, inputs: StepInputs) -> StepOutput:
        time.sleep(0.005)
        return super().run(inputs)


class _CrashingRunner(_UnhurriedRunner):
    def run(self, inputs: StepInputs) -> StepOutput:
        if (inputs.token_ids == CRASH_TOKEN).any():
            raise RuntimeError("the device said no to 'a secret prompt'")
        return super().run(inputs)


class _SpinningRunner(FakeRunner):
    def run(self, inputs: StepInputs) -> StepOutput:
        while (inputs.token_ids == CRASH_TOKEN).any():
            pass
        return super().run(inputs)
