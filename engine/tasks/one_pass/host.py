"""Run the inputs of many calls in batches of one forward pass each, in a worker process forked from the zygote.

While the worker (`worker.py`) computes, items queue up. The next batch takes one item of each call in turn until its
cost budget is full, so that a call with a hundred items does not delay a call with one. The task defines items and
outputs; the host reads only the cost of an item. A model that computes in many steps reports them, and stops between
two steps if the call is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from engine.processes.child_link import ChildLink
from engine.processes.frames import framed
from engine.processes.zygote import ZygoteError
from engine.protocol.events import Event, Failed, Finished, Progress, Result, Started, Usage
from engine.report import EngineStatus
from engine.tasks.loading import LoadRequest, ModelLoadError
from engine.tasks.one_pass.libraries import zygote_for
from engine.tasks.work import Emit, Refused
from telemetry.child_process import Child

logger = logging.getLogger(__name__)

MAX_BATCH_COST = 4096
MAX_BATCH_ITEMS = 256
MAX_WAITING_ITEMS = 16_384

_ENDED = "the process that ran the model ended"


class Item(Protocol):
    """One input of a forward pass: a msgspec Struct of the task. `cost` is its computation, in tokens or a similar
    unit."""

    @property
    def cost(self) -> int: ...


class WorkerArguments(Struct, frozen=True):
    """Arguments of the forked worker. `entry` is the task's `load` function, as "module:function". A worker with a
    `niceness` above 0 gives way to the other processes of the machine."""

    entry: str
    model_dir: str
    device: str
    num_threads: int
    niceness: int = 0


class CancelItems(Struct, frozen=True):
    """Sent to the worker: the outputs of these items of the batch with this number are no longer needed."""

    batch: int
    indices: list[int]


class Loaded(Struct, frozen=True, tag="loaded"):
    """The model is loaded. `info` is the task's own description of the model."""

    info: Any


class LoadFailed(Struct, frozen=True, tag="load_failed"):
    message: str


class Outputs(Struct, frozen=True, tag="outputs"):
    """The outputs of a batch in order, and the device time of the batch in microseconds."""

    outputs: list[Any]
    device_us: int


class ItemProgress(Struct, frozen=True, tag="item_progress"):
    """`num_done` of `num_total` steps of an item of the batch are done."""

    index: int
    num_done: int
    num_total: int


FromWorker = Loaded | LoadFailed | Outputs | ItemProgress
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode_frame(message: FromWorker | CancelItems | list[Item]) -> bytes:
    """Return one frame of the worker's socket: a batch of items, a cancellation, or a message of the worker."""
    return framed(msgspec.msgpack.encode(message))


@dataclass(frozen=True)
class OutputStream:
    """Conversion of outputs that are sent as soon as they are computed: `event` turns an output into an event, and
    `usage` returns the charge for the outputs so far. Requires batches of one item, in the order of items."""

    event: Callable[[Any], Event]
    usage: Callable[[list[Any]], Usage]


class Job:
    """The items of one running call, created by `OnePassHost.submit`. `measure` returns the usage for the outputs of
    all items. The usage is reported once the call is finished, with the device time."""

    def __init__(
        self,
        host: OnePassHost,
        items: Sequence[Item],
        render: Callable[[list[Any]], Result],
        emit: Emit,
        measure: Callable[[list[Any]], Usage],
        stream: OutputStream | None,
    ) -> None:
        self.items = items
        self.outputs: list[Any] = [None] * len(items)
        self.num_taken = 0  # items that were sent to the worker
        self.num_computed = 0
        self.device_us = 0.0
        self._arrived_s = time.perf_counter()
        self._host = host
        self._render = render
        self._emit = emit
        self._measure = measure
        self._stream = stream
        self._num_steps = [0] * len(items)  # steps of each item that are done
        self._has_started = False
        self._is_over = False

    def cancel(self) -> Usage:
        """Drop the items that are not computed yet. Return what the call is charged for: the steps that are done and
        the outputs that were sent."""
        self._is_over = True
        self._host.drop(self)
        if self._stream is not None:
            return self._measured_usage(self._stream.usage(self.outputs[: self.num_computed]))
        return self._measured_usage(Usage(num_steps=sum(self._num_steps))) if any(self._num_steps) else Usage()

    def _measured_usage(self, usage: Usage) -> Usage:
        """Return the usage with the device time, and with the time that the call has spent on the node."""
        device_us = round(self.device_us)
        total_us = round((time.perf_counter() - self._arrived_s) * 1e6)
        prefill_us = min(device_us, total_us)
        times = {"device_us": device_us, "prefill_us": prefill_us, "queue_us": total_us - prefill_us}
        return msgspec.structs.replace(usage, **times)

    def add_progress(self, index: int, num_done: int, num_total: int) -> None:
        """Report that steps of an item are done."""
        self._num_steps[index] = num_done
        if not self._is_over:
            self._start()
            self._emit(Progress(sum(self._num_steps), num_total * len(self.items)))

    def add_output(self, index: int, output: Any, device_us: float) -> None:
        """Store the output of one item, send it if the outputs are streamed, and end the call if it was the last."""
        self.outputs[index] = output
        self.num_computed += 1
        self.device_us += device_us
        if self._is_over or (self._stream is None and self.num_computed < len(self.items)):
            return
        try:
            self._send_output(output)
        except Exception as error:  # a defect in one call must not affect the others
            logger.exception("outputs could not be rendered: %s", type(error).__name__)
            self.fail(Failed("internal", "the node could not run this call; its log has the reason"))

    def _send_output(self, output: Any) -> None:
        """Emit the latest output of a stream, or the result of all outputs; and the end if all are computed."""
        if self._stream is not None:
            event, usage = self._stream.event(output), self._stream.usage(self.outputs[: self.num_computed])
        else:
            event, usage = self._render(self.outputs), self._measure(self.outputs)
        self._start(usage.prompt_tokens)
        self._emit(event)
        if self.num_computed == len(self.items):
            self._is_over = True
            self._emit(Finished("stop", self._measured_usage(usage)))

    def _start(self, prompt_tokens: int = 0) -> None:
        if not self._has_started:
            self._has_started = True
            self._emit(Started(prompt_tokens))

    def fail(self, failed: Failed) -> None:
        """End the call with `failed`, unless it is over."""
        if not self._is_over:
            self._is_over = True
            self._emit(failed)


class OnePassHost:
    """The handle of one worker, for one event loop; created by `start`. `info` is the task's own description of the
    loaded model. A batch costs at most `max_batch_cost`, unless it is a single item."""

    def __init__(self, child: Child, on_exit: Callable[[str], None], max_batch_cost: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = ChildLink(
            child,
            "the worker",
            on_frame=self._on_frame,
            on_lost=self._on_lost,
            on_exit=on_exit,
            has_pending=lambda: bool(self._in_flight),
        )
        self.max_batch_cost = max_batch_cost
        self._loaded: asyncio.Future[Any] = self._loop.create_future()
        self._jobs: deque[Job] = deque()  # jobs with items that were not sent yet
        self._in_flight: list[tuple[Job, int]] = []  # job and item index, in the order of the batch
        self._num_waiting = 0
        self._waiting_cost = self._in_flight_cost = self._computed_cost = 0
        self._num_batches = self._busy_us = 0
        self._is_dispatching = False
        self.info: Any

    @classmethod
    async def start(
        cls, request: LoadRequest, entry: str, max_batch_cost: int = MAX_BATCH_COST, niceness: int = 0
    ) -> OnePassHost:
        """Fork a worker that loads the model with `entry`, and return when it is ready. Raises ModelLoadError. If
        cancelled, kills the worker, which cannot receive messages while it loads."""
        arguments = WorkerArguments(entry, str(request.folder), request.settings.device, request.num_threads, niceness)
        name = f"worker {request.folder.name}"
        try:
            child = await zygote_for(request.folder, request.zygote).fork(
                "engine.tasks.one_pass.worker:main", msgspec.msgpack.encode(arguments), name=name
            )
        except ZygoteError as error:
            raise ModelLoadError(str(error)) from error
        host = cls(child, request.on_exit, max_batch_cost)
        try:
            await host._link.open()
            host.info = await host._loaded
        except BaseException as error:
            await host.close(at_once=isinstance(error, asyncio.CancelledError))
            raise
        host._link.watch_exit()
        return host

    @property
    def pid(self) -> int:
        return self._link.pid

    @property
    def is_alive(self) -> bool:
        return self._link.is_alive

    def status(self) -> EngineStatus:
        """Return the status, with items as sequences, cost as tokens and batches as steps."""
        return EngineStatus(
            num_running=len(self._in_flight),
            num_waiting=self._num_waiting,
            queued_tokens=self._waiting_cost + self._in_flight_cost,
            num_computed_tokens=self._computed_cost,
            num_steps=self._num_batches,
            busy_us=self._busy_us,
        )

    def submit(
        self,
        items: Sequence[Item],
        render: Callable[[list[Any]], Result],
        emit: Emit,
        measure: Callable[[list[Any]], Usage | None] = lambda _outputs: None,
        stream: OutputStream | None = None,
    ) -> Job:
        """Queue the items of a call, at least one. `render` turns their outputs into the call's Result. `measure`
        returns what the call is charged for; None charges the cost of all items as prompt tokens. With `stream`, each
        output is sent at once and there is no Result. Raises Refused."""
        if not self.is_alive:
            raise Refused("internal", _ENDED, is_retryable=True)
        if self._num_waiting + len(items) > MAX_WAITING_ITEMS:
            message = f"more than {MAX_WAITING_ITEMS} inputs would be waiting for this model"
            raise Refused("out_of_capacity", message, is_retryable=True)
        of_items = Usage(prompt_tokens=sum([item.cost for item in items]))
        job = Job(self, items, render, emit, lambda outputs: measure(outputs) or of_items, stream)
        self._jobs.append(job)
        self._num_waiting += len(items)
        self._waiting_cost += sum([item.cost for item in items])
        if not self._is_dispatching and not self._in_flight:
            self._is_dispatching = True  # after this turn of the event loop, so that calls that arrive together share
            self._loop.call_soon(self._dispatch)
        return job

    def drop(self, job: Job) -> None:
        """Remove the job's items that were not sent yet, and cancel those that the worker computes."""
        indices = [number for number, (each, _) in enumerate(self._in_flight) if each is job]
        if indices and self.is_alive:
            self._link.send(encode_frame(CancelItems(self._num_batches, indices)))
        if job in self._jobs:
            self._jobs.remove(job)
            unsent = job.items[job.num_taken :]
            self._num_waiting -= len(unsent)
            self._waiting_cost -= sum([item.cost for item in unsent])

    async def close(self, *, at_once: bool = False) -> None:
        """End the worker. Open calls fail as retryable. `at_once` kills it without waiting."""
        await self._link.close(at_once=at_once)
        if self._loaded.done() and not self._loaded.cancelled():
            self._loaded.exception()  # marks the exception as retrieved

    # ── to the worker ──

    def _dispatch(self) -> None:
        self._is_dispatching = False
        if not self._in_flight and self.is_alive and self._jobs:
            self._in_flight = self._take_batch()
            self._link.send(encode_frame([job.items[index] for job, index in self._in_flight]))

    def _take_batch(self) -> list[tuple[Job, int]]:
        """Return (job, item index) of the next batch: an item of each job in turn; at least one."""
        batch: list[tuple[Job, int]] = []
        batch_cost = 0
        while self._jobs and len(batch) < MAX_BATCH_ITEMS:
            job = self._jobs[0]
            cost = job.items[job.num_taken].cost
            if batch and batch_cost + cost > self.max_batch_cost:
                break
            self._jobs.popleft()
            batch.append((job, job.num_taken))
            job.num_taken += 1
            if job.num_taken < len(job.items):
                self._jobs.append(job)
            batch_cost += cost
        self._num_waiting -= len(batch)
        self._waiting_cost -= batch_cost
        self._in_flight_cost = batch_cost
        return batch

    # ── from the worker ──

    def _on_frame(self, payload: bytes) -> None:
        message = _from_worker.decode(payload)
        if isinstance(message, Outputs):
            self._on_outputs(message)
        elif isinstance(message, ItemProgress):
            job, index = self._in_flight[message.index]
            job.add_progress(index, message.num_done, message.num_total)
        elif not self._loaded.done():
            if isinstance(message, Loaded):
                self._loaded.set_result(message.info)
            else:
                self._loaded.set_exception(ModelLoadError(message.message))

    def _on_outputs(self, message: Outputs) -> None:
        batch, self._in_flight = self._in_flight, []
        us_per_cost = message.device_us / max(1, self._in_flight_cost)
        self._busy_us += message.device_us
        self._computed_cost += self._in_flight_cost
        self._in_flight_cost = 0
        self._num_batches += 1
        self._dispatch()  # first, so that the worker does not wait for the calls below
        for (job, index), output in zip(batch, message.outputs, strict=True):
            job.add_output(index, output, us_per_cost * job.items[index].cost)

    def _on_lost(self) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(ModelLoadError("the worker ended while loading; its log says why"))
        jobs = [*self._jobs, *(job for job, _ in self._in_flight)]
        self._jobs.clear()
        self._in_flight = []
        self._num_waiting = self._waiting_cost = self._in_flight_cost = 0
        for job in jobs:
            job.fail(Failed("internal", _ENDED, is_retryable=True, num_crashes=1))
