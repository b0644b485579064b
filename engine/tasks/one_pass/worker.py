"""The worker process of a task of one forward pass: load the task's model, then run batches until the socket closes.

Forked from the zygote, one per model; `host.py` is its handle. The task's `load` function returns the model.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch

from engine.processes.frames import FrameReader
from engine.processes.zygote_process import resolve
from engine.tasks.one_pass.host import (
    CancelItems,
    ItemProgress,
    Loaded,
    LoadFailed,
    Outputs,
    WorkerArguments,
    encode_frame,
)


class WorkerModel(Protocol):
    """A loaded model, returned by the task's `load(model_dir, device)`, which raises OSError, ValueError or KeyError.

    `item_type` is the Struct of one item, `info` what the task's front needs to know about the model.
    """

    item_type: type
    info: msgspec.Struct

    def warm_up(self) -> None:
        """Run a small batch, so that the first call does not pay for initialization."""
        ...

    def run(self, items: list[Any]) -> list[Any]:
        """Return the output of each item. An output does not depend on the other items, except for rounding."""
        ...


class Steps(Protocol):
    """The steps of a batch."""

    def report(self, index: int, num_done: int, num_total: int) -> None:
        """Report that steps of an item of the batch are done."""
        ...

    def is_cancelled(self, index: int) -> bool:
        """Return True if the output of an item is no longer needed."""
        ...


@runtime_checkable
class SteppedModel(Protocol):
    """A model that computes an item in steps, for seconds or minutes. It has the method `run_in_steps` instead of the
    `run` of a `WorkerModel`, and else the same."""

    item_type: type
    info: msgspec.Struct

    def warm_up(self) -> None: ...

    def run_in_steps(self, items: list[Any], steps: Steps) -> list[Any]:
        """Return the output of each item; None for a cancelled one."""
        ...


class _Channel:
    """The worker's end of the socket: batches, and the `Steps` of the current batch."""

    def __init__(self, connection: socket.socket, item_type: type) -> None:
        self._connection = connection
        self._reader = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(list[item_type] | CancelItems)  # type: ignore[valid-type]
        self._batches: deque[list[Any]] = deque()
        self._num_batches = 0  # batches whose outputs were sent
        self._cancelled: set[int] = set()  # items of the current batch

    def next_batch(self) -> list[Any] | None:
        """Wait for the next batch; return None once the host has closed the socket."""
        while not self._batches:
            if not self._receive():
                return None
        return self._batches.popleft()

    def send_outputs(self, outputs: list[Any], device_us: int) -> None:
        self._num_batches += 1
        self._cancelled.clear()
        self._connection.sendall(encode_frame(Outputs(outputs, device_us)))

    def report(self, index: int, num_done: int, num_total: int) -> None:
        self._connection.sendall(encode_frame(ItemProgress(index, num_done, num_total)))

    def is_cancelled(self, index: int) -> bool:
        while select.select([self._connection], [], [], 0)[0]:
            if not self._receive():
                return True
        return index in self._cancelled

    def _receive(self) -> bool:
        """Read what has arrived, waiting for at least one byte. Return False if the host has closed the socket."""
        data = self._connection.recv(1 << 20)
        for payload in self._reader.feed(data):
            message = self._decoder.decode(payload)
            if not isinstance(message, CancelItems):
                self._batches.append(message)
            elif message.batch == self._num_batches:  # a cancellation can arrive after the batch
                self._cancelled.update(message.indices)
        return bool(data)


def main(connection: socket.socket, arguments: bytes) -> None:
    """Entry point of the forked process."""
    options = msgspec.msgpack.decode(arguments, type=WorkerArguments)
    if options.niceness:
        os.setpriority(os.PRIO_PROCESS, 0, options.niceness)  # before there are threads, which inherit it
    torch.set_num_threads(options.num_threads)
    try:
        with ThreadPoolExecutor(1, initializer=_lower_priority) as executor:
            load = resolve(options.entry)
            model: WorkerModel | SteppedModel = executor.submit(load, Path(options.model_dir), options.device).result()
        model.warm_up()
    except (OSError, ValueError, KeyError) as error:
        connection.sendall(encode_frame(LoadFailed(f"{type(error).__name__}: {error}")))
        return
    connection.sendall(encode_frame(Loaded(model.info)))
    channel = _Channel(connection, model.item_type)
    while (items := channel.next_batch()) is not None:
        started_s = time.perf_counter()
        outputs = model.run_in_steps(items, channel) if isinstance(model, SteppedModel) else model.run(items)
        channel.send_outputs(outputs, round((time.perf_counter() - started_s) * 1e6))


def _lower_priority() -> None:
    """Lower this thread's priority: loading takes seconds while another model may be serving."""
    thread_id = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread_id, max(5, os.getpriority(os.PRIO_PROCESS, thread_id)))
