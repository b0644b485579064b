"""The worker process of a task of one forward pass: load the task's model, then run batches until the socket closes.

Forked from the zygote, one per model; `host.py` is its handle. The task's `load` function returns the model.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from engine.processes.frames import FrameReader
from engine.processes.zygote_process import resolve
from engine.tasks.one_pass.host import Loaded, LoadFailed, Outputs, WorkerArguments, encode_frame


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


def main(connection: socket.socket, arguments: bytes) -> None:
    """Entry point of the forked process."""
    options = msgspec.msgpack.decode(arguments, type=WorkerArguments)
    torch.set_num_threads(options.num_threads)
    try:
        with ThreadPoolExecutor(1, initializer=_lower_priority) as executor:
            load = resolve(options.entry)
            model: WorkerModel = executor.submit(load, Path(options.model_dir), options.device).result()
        model.warm_up()
    except (OSError, ValueError, KeyError) as error:
        connection.sendall(encode_frame(LoadFailed(f"{type(error).__name__}: {error}")))
        return
    connection.sendall(encode_frame(Loaded(model.info)))
    reader = FrameReader()
    decoder = msgspec.msgpack.Decoder(list[model.item_type])  # type: ignore[name-defined]
    while data := connection.recv(1 << 20):
        for payload in reader.feed(data):
            items = decoder.decode(payload)
            started_s = time.perf_counter()
            outputs = model.run(items)
            device_us = round((time.perf_counter() - started_s) * 1e6)
            connection.sendall(encode_frame(Outputs(outputs, device_us)))


def _lower_priority() -> None:
    """Lower this thread's priority: loading takes seconds while another model may be serving."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
