"""A model whose events are set by the test, with a store and loaders for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from catalog.manifest import FileEntry, Manifest
from engine.protocol.events import Event, Usage
from engine.report import EngineStatus, SleepReport
from engine.serving.model_store import LocalModel, ModelUnavailable
from engine.tasks.work import Emit, Work


class FakeRun:
    """The work of one call. The test sets its events."""

    def __init__(self, work: Work, emit: Emit) -> None:
        self.work = work
        self.is_cancelled = False
        self._emit = emit

    def say(self, *events: Event) -> None:
        for event in events:
            self._emit(event)

    def cancel(self) -> Usage:
        self.is_cancelled = True
        return Usage(prompt_tokens=3, completion_tokens=2)


class FakeModel:
    """A loaded model. Every start waits for `start_gate` and raises `error` if it is set. Sleeps and wakes wait for
    `sleep_gate` and raise `sleep_error` if it is set; asleep, `device_bytes` stay on the device."""

    def __init__(self, on_exit: Callable[[str], None] = lambda _: None) -> None:
        self.runs: list[FakeRun] = []
        self.is_alive = True
        self.is_closed = False
        self.crash = on_exit
        self.start_gate = asyncio.Event()
        self.start_gate.set()
        self.error: Exception | None = None
        self.can_sleep = True
        self.is_asleep = False
        self.changes: list[str] = []
        self.sleep_gate = asyncio.Event()
        self.sleep_gate.set()
        self.sleep_error: Exception | None = None
        self.device_bytes = 0

    async def sleep(self, snapshot: str) -> SleepReport:
        assert os.stat(snapshot).st_size == 0
        await self._change("sleep")
        return SleepReport(is_asleep=True, host_bytes=20, device_bytes=self.device_bytes)

    async def wake(self) -> SleepReport:
        await self._change("wake")
        return SleepReport(is_asleep=False)

    async def _change(self, change: str) -> None:
        self.changes.append(change)
        await self.sleep_gate.wait()
        if self.sleep_error is not None:
            raise self.sleep_error
        assert self.is_asleep == (change == "wake")
        self.is_asleep = change == "sleep"

    async def start(self, work: Work, emit: Emit) -> FakeRun:
        assert not self.is_asleep
        await self.start_gate.wait()
        if self.error is not None:
            raise self.error
        self.runs.append(FakeRun(work, emit))
        return self.runs[-1]

    def status(self) -> EngineStatus:
        return EngineStatus(num_running=len(self.runs))

    async def close(self) -> None:
        self.is_closed = True


class FakeStore:
    """A store that has every model as revision "r". `errors` maps models to errors; `unknown` models do not exist."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.unknown: set[str] = set()
        self.sizes: dict[str, int] = {}  # bytes of weights

    async def current_revision(self, name: str) -> str:
        if name in self.unknown:
            raise ModelUnavailable(f"{name} is not published")
        return "r"

    async def open(self, name: str, revision: str, on_progress: object = None) -> LocalModel:
        if name in self.errors:
            raise self.errors[name]
        self.held.append(name)
        size_bytes = self.sizes.get(name, 0)
        files = (FileEntry(path="weights.safetensors", size_bytes=size_bytes, sha256="0" * 64),) if size_bytes else ()
        manifest = Manifest(name=name, task="text-generation", architecture="Fake", context_window=64, files=files)
        return LocalModel(name, revision, Path("/nowhere"), manifest)

    def release(self, revision: str) -> None:
        self.held.pop()


class FakeLoaders:
    """Loads FakeModels. Every load waits for `gate` and raises `error` if it is set."""

    def __init__(self) -> None:
        self.models: dict[str, FakeModel] = {}
        self.num_loads = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.load_s = 0.0  # seconds by which each load moves `clock` forward
        self.clock: HandClock | None = None
        self.kv_bytes: dict[str, int] = {}

    async def load(self, model: LocalModel, on_exit: Callable[[str], None], kv_bytes: int = 0) -> FakeModel:
        self.num_loads += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.clock is not None:
            self.clock.now_s += self.load_s
        self.kv_bytes[model.name] = kv_bytes
        self.models[model.name] = FakeModel(on_exit)
        return self.models[model.name]


class HandClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s
