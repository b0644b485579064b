"""Batch work that needs one forward pass: rows of token ids of many calls in, one vector per row out.

A separate process forked from the zygote computes (`worker.py`). Meanwhile rows queue up; the next batch takes one row
of each call in turn until its token budget is full, so that a call with a hundred texts does not delay a call with one.
Knows no texts and no torch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.processes.child_link import ChildLink
from engine.processes.frames import framed
from engine.processes.zygote import Zygote
from engine.report import EngineStatus
from telemetry.child_process import Child

MAX_BATCH_TOKENS = 4096
MAX_BATCH_ROWS = 256
MAX_WAITING_ROWS = 16_384

Row = NDArray[np.int32]


class WorkerArguments(Struct, frozen=True):
    """Arguments of the forked worker."""

    model_dir: str
    device: str
    num_threads: int


class Ready(Struct, frozen=True, tag="ready"):
    """The model is loaded; its vectors have `num_dimensions`, `pooling` is its default, its ids are below
    `vocab_size`."""

    num_dimensions: int
    pooling: str
    vocab_size: int


class Unable(Struct, frozen=True, tag="unable"):
    """The model cannot be loaded."""

    message: str


class Batch(Struct, frozen=True, tag="batch"):
    """R rows: `lengths` int32 [R], `token_ids` int32 [sum of lengths], `is_cls` bool [R], all little-endian."""

    lengths: bytes
    token_ids: bytes
    is_cls: bytes


class Vectors(Struct, frozen=True, tag="vectors"):
    """The batch's vectors, float32 [R, num_dimensions], little-endian, and the device time they took."""

    data: bytes
    device_us: int = 0


FromWorker = Ready | Unable | Vectors
_news_decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode_frame(message: FromWorker | Batch) -> bytes:
    """Return one frame of the worker's socket, including its length."""
    return framed(msgspec.msgpack.encode(message))


class WorkerLoadError(Exception):
    """The model could not be loaded; the text explains the reason to the operator."""


class WorkerGone(Exception):
    """The worker ended before the work was finished."""


class Overloaded(Exception):
    """Too many rows are queued."""


class _Job:
    """One call's rows; `future` gets its vectors, float32 [rows, dimensions]."""

    def __init__(self, rows: Sequence[Row], is_cls: bool, num_dimensions: int) -> None:
        self.rows = rows
        self.is_cls = is_cls
        self.num_taken = 0
        self.num_left = len(rows)
        self.vectors = np.empty((len(rows), num_dimensions), dtype=np.float32)
        self.device_us = 0.0
        self.future: asyncio.Future[NDArray[np.float32]] = asyncio.get_running_loop().create_future()


class SinglePass:
    """The handle of one worker, for one event loop; created by `start`. `on_exit` is called once with a message if the
    worker ends unexpectedly."""

    def __init__(self, child: Child, on_exit: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = ChildLink(
            child,
            "the worker",
            on_frame=self._on_frame,
            on_lost=self._on_lost,
            on_exit=on_exit,
            has_pending=lambda: bool(self._in_flight),
        )
        self._loaded: asyncio.Future[Ready] = self._loop.create_future()
        self._jobs: deque[_Job] = deque()  # with rows that have not been taken yet
        self._in_flight: list[tuple[_Job, int]] = []
        self._num_waiting_rows = 0
        self._num_waiting_tokens = 0
        self._num_computed_tokens = 0
        self._num_batches = 0
        self._busy_us = 0
        self._is_dispatching = False
        self.info: Ready

    @classmethod
    async def start(
        cls, zygote: Zygote, model_dir: Path, device: str, num_threads: int, on_exit: Callable[[str], None]
    ) -> SinglePass:
        """Fork a worker, load the model and return when it is ready. Raises WorkerLoadError or ZygoteError. If
        cancelled, it kills the worker, which cannot receive messages while it loads."""
        arguments = msgspec.msgpack.encode(WorkerArguments(str(model_dir), device, num_threads))
        child = await zygote.fork("engine.embeddings.worker:main", arguments, name=f"embed {model_dir.name}")
        worker = cls(child, on_exit)
        try:
            await worker._link.open()
            worker.info = await worker._loaded
        except BaseException as error:
            await worker.close(at_once=isinstance(error, asyncio.CancelledError))
            raise
        worker._link.watch_exit()
        return worker

    @property
    def pid(self) -> int:
        return self._link.pid

    @property
    def is_alive(self) -> bool:
        return self._link.is_alive

    def status(self) -> EngineStatus:
        """Return the status, with rows as sequences and batches as steps."""
        return EngineStatus(
            num_running=len(self._in_flight),
            num_waiting=self._num_waiting_rows,
            queued_tokens=self._num_waiting_tokens + sum(len(job.rows[row]) for job, row in self._in_flight),
            num_computed_tokens=self._num_computed_tokens,
            num_steps=self._num_batches,
            busy_us=self._busy_us,
        )

    async def run(self, rows: Sequence[Row], *, is_cls: bool) -> tuple[NDArray[np.float32], int]:
        """Return the rows' vectors [rows, dimensions] and their share of the device time in microseconds. If
        cancelled, queued rows are dropped.

        Raises WorkerGone or Overloaded.
        """
        if not self.is_alive:
            raise WorkerGone("the worker has ended")
        if self._num_waiting_rows + len(rows) > MAX_WAITING_ROWS:
            raise Overloaded(f"more than {MAX_WAITING_ROWS} texts would be waiting")
        job = _Job(rows, is_cls, self.info.num_dimensions)
        if not rows:
            return job.vectors, 0
        self._jobs.append(job)
        self._num_waiting_rows += len(rows)
        self._num_waiting_tokens += sum(map(len, rows))
        self._dispatch_soon()
        try:
            return await job.future, round(job.device_us)
        except asyncio.CancelledError:
            self._forget(job)
            raise

    async def close(self, *, at_once: bool = False) -> None:
        """End the worker. Open work raises WorkerGone. `at_once` kills it without waiting."""
        await self._link.close(at_once=at_once)
        if self._loaded.done() and not self._loaded.cancelled():
            self._loaded.exception()  # marks the exception as retrieved

    # ── to the worker ──

    def _dispatch_soon(self) -> None:
        """Dispatch after this turn of the event loop, so that calls that arrive together share a batch."""
        if not self._is_dispatching and not self._in_flight:
            self._is_dispatching = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatching = False
        if not self.is_alive or self._in_flight:
            return
        taken = self._take_batch()
        if not taken:
            return
        rows = [job.rows[row] for job, row in taken]
        self._in_flight = taken
        self._link.send(
            encode_frame(
                Batch(
                    lengths=np.array([len(row) for row in rows], dtype="<i4").tobytes(),
                    token_ids=np.concatenate(rows).astype("<i4", copy=False).tobytes(),
                    is_cls=np.array([job.is_cls for job, _ in taken], dtype=np.bool_).tobytes(),
                )
            )
        )

    def _take_batch(self) -> list[tuple[_Job, int]]:
        """Return (job, row) of the next batch: a row of each job in turn; at least one."""
        taken: list[tuple[_Job, int]] = []
        num_tokens = 0
        while self._jobs and len(taken) < MAX_BATCH_ROWS:
            job = self._jobs[0]
            size = len(job.rows[job.num_taken])
            if taken and num_tokens + size > MAX_BATCH_TOKENS:
                break
            self._jobs.popleft()
            taken.append((job, job.num_taken))
            job.num_taken += 1
            if job.num_taken < len(job.rows):
                self._jobs.append(job)
            num_tokens += size
        self._num_waiting_rows -= len(taken)
        self._num_waiting_tokens -= num_tokens
        return taken

    def _forget(self, job: _Job) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
            rest = job.rows[job.num_taken :]
            self._num_waiting_rows -= len(rest)
            self._num_waiting_tokens -= sum(map(len, rest))

    # ── from the worker ──

    def _on_frame(self, payload: bytes) -> None:
        news = _news_decoder.decode(payload)
        if isinstance(news, Vectors):
            self._on_vectors(news)
        elif not self._loaded.done():
            if isinstance(news, Ready):
                self._loaded.set_result(news)
            else:
                self._loaded.set_exception(WorkerLoadError(news.message))

    def _on_vectors(self, news: Vectors) -> None:
        done, self._in_flight = self._in_flight, []
        vectors = np.frombuffer(news.data, dtype="<f4").reshape(len(done), self.info.num_dimensions)
        us_per_token = news.device_us / max(1, sum(len(job.rows[row]) for job, row in done))
        self._busy_us += news.device_us
        for (job, row), vector in zip(done, vectors, strict=True):
            job.vectors[row] = vector
            job.num_left -= 1
            job.device_us += us_per_token * len(job.rows[row])
            self._num_computed_tokens += len(job.rows[row])
            if job.num_left == 0 and not job.future.done():
                job.future.set_result(job.vectors)
        self._num_batches += 1
        self._dispatch()

    def _on_lost(self) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(WorkerLoadError("the worker ended while loading; its log says why"))
        self._fail_all()

    def _fail_all(self) -> None:
        jobs = [*self._jobs, *(job for job, _ in self._in_flight)]
        self._jobs.clear()
        self._in_flight = []
        self._num_waiting_rows = self._num_waiting_tokens = 0
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(WorkerGone("the worker has ended"))
