"""Ranks inside the test's process: the real engine loop over the fake runner, with one step every `step_s` of the
loop's time, behind a real socket and a handle like that of a forked child. Tests can kill a rank or make it hang.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections.abc import Callable

import numpy as np

from engine.loop import Engine
from engine.processes.frames import FrameReader
from engine.protocol.events import Event, Failed, Finished, Started, Token, Usage
from engine.protocol.tasks.text_generation import TextGeneration
from engine.ranks import rank, wire
from engine.ranks.output import SequenceOutput
from engine.ranks.replica import Replica
from engine.report import EngineStatus
from engine.scheduling.sequence import SequenceRequest
from engine.serving.model_store import LocalModel
from engine.tasks.generation import _FAILURES
from engine.tasks.work import Emit, Work
from telemetry.child_process import Child
from tests.fakes.rank import CRASH_TOKEN
from tests.fakes.runner import FakeRunner

_NO_SUCH_PID = 1 << 30  # larger than the kernel's largest process id


class LocalRank(Child):
    """One rank, and the child handle that its replica uses."""

    def __init__(self, pid: int, step_s: float, arguments: bytes, runner: FakeRunner) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._loop = asyncio.get_running_loop()
        super().__init__(pid, ours, self._loop.create_future())
        self.is_hung = False
        self.is_dead = False
        self.engine = Engine(runner, *wire.decode_arguments(arguments))
        self._step_s = step_s
        self._reader = FrameReader()
        self._timer: asyncio.TimerHandle | None = None
        self.theirs.setblocking(False)
        self._loop.add_reader(self.theirs.fileno(), self._receive)
        self.theirs.send(wire.encode_frame(wire.Loaded(self.engine.info, self.engine.status())))

    def kill(self) -> None:
        self._end(-signal.SIGKILL)

    def _end(self, code: int) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self.theirs.fileno())
        self.theirs.close()
        self.exited.set_result(code)

    def _receive(self) -> None:
        try:
            data = self.theirs.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if self.is_hung and data:
            return  # a hung rank ignores messages
        if not data:
            self._end(0)
            return
        for payload in self._reader.feed(data):
            rank._apply(wire.decode_to_rank(payload), self.engine)
        if self._timer is None and self.engine.has_work:
            self._timer = self._loop.call_later(self._step_s, self._step)

    def _step(self) -> None:
        self._timer = None
        if self.is_hung:
            return
        report = self.engine.step()
        running = self.engine.scheduler.running
        if (self.engine.table.token_ids[running, 0] == CRASH_TOKEN).any():
            self._end(1)
            return
        self.theirs.send(wire.encode_report(report, self.engine.status()))
        if self.engine.has_work:
            self._timer = self._loop.call_later(self._step_s, self._step)


class LocalZygote:
    """Forks LocalRanks."""

    def __init__(self, step_s: float = 0.01) -> None:
        self.ranks: list[LocalRank] = []  # the running ranks and the last one that exited
        self._step_s = step_s
        self._pids = itertools.count(_NO_SUCH_PID)

    async def fork(self, _entry: str, arguments: bytes = b"", *, name: str = "") -> LocalRank:
        self.ranks = [each for each in self.ranks if not each.is_dead]
        self.ranks.append(LocalRank(next(self._pids), self._step_s, arguments, FakeRunner(num_blocks=48)))
        return self.ranks[-1]


class TokenModel:
    """A text model without text: takes the prompt's token ids and returns token ids as text, over a real Replica."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._ids = itertools.count(1)

    @property
    def is_alive(self) -> bool:
        return self.replica.is_alive

    def status(self) -> EngineStatus:
        return self.replica.status()

    async def close(self) -> None:
        await self.replica.close()

    async def start(self, work: Work, emit: Emit) -> TokenRun:
        run = TokenRun(self.replica, next(self._ids), work, emit)
        run.begin()
        return run


class TokenRun:
    """One call's sequence."""

    def __init__(self, replica: Replica, sequence_id: int, work: Work, emit: Emit) -> None:
        self._replica = replica
        self._sequence_id = sequence_id
        self._work = work
        self._emit = emit
        self._num_tokens = 0
        self._is_over = False

    def begin(self) -> None:
        task = self._work.task
        assert isinstance(task, TextGeneration)
        prompt = np.array(task.prompt_token_ids, dtype=np.int32)
        request = SequenceRequest(self._sequence_id, prompt, task.sampling, self._work.namespace, self._work.tenant)
        self._replica.add(request, self._on_output)

    def cancel(self) -> Usage:
        if not self._is_over:
            self._is_over = True
            self._replica.abort(self._sequence_id)
        return self._usage()

    def _usage(self) -> Usage:
        return Usage(completion_tokens=self._num_tokens)

    def _on_output(self, output: SequenceOutput) -> None:
        if self._is_over:
            return
        for token_id in output.token_ids:
            if not self._num_tokens:
                self._emit(Started())
            self._num_tokens += 1
            self._emit(Token(f"{token_id} "))
        end: Event | None = None
        if output.finish in ("stop", "length"):
            end = Finished(output.finish, self._usage())
        elif output.finish is not None:
            failed = _FAILURES[output.finish]
            end = Failed(failed.reason, failed.message, failed.is_retryable, self._usage(), failed.num_crashes)
        if end is not None:
            self._is_over = True
            self._emit(end)


class TokenLoaders:
    """Loads TokenModels whose ranks are forked by `zygote` according to `config`."""

    def __init__(self, zygote: object, config: object, entry: str = "engine.ranks.rank:main") -> None:
        self._zygote = zygote
        self._config = config
        self._entry = entry
        self.models: dict[str, TokenModel] = {}

    async def load(self, model: LocalModel, on_exit: Callable[[str], None], kv_bytes: int = 0) -> TokenModel:
        replica = await Replica.start(self._zygote, self._config, "r", on_exit, entry=self._entry)  # type: ignore[arg-type]
        self.models[model.name] = TokenModel(replica)
        return self.models[model.name]
