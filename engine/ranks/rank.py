"""Rank process: owns one device and runs the engine. Receive work, step, send the report.

Single-threaded, without asyncio and text: one frame per step each way. Without work the process sleeps in the socket.
It ends when its replica closes the socket. An error in a step also ends it, because the state of the device is unknown
then; no request may cause one. With several ranks this is the leading one (`ranks/group.py`).
"""

from __future__ import annotations

import gc
import logging
import select
import socket
import time

import msgspec
import torch

from engine.config import EngineConfig
from engine.devices.assignment import CPU, free_memory_bytes
from engine.devices.faults import DeviceLost, log_faults
from engine.devices.memory import describe_shortage
from engine.loop import Engine
from engine.processes.frames import FrameReader
from engine.ranks import wire
from engine.ranks.group import load
from engine.report import SleepFailed
from engine.speculation.factory import make_drafter

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 1024 * 1024
_IDLE_S = 1.0  # without work, after which the rank prepares for constraints


def main(connection: socket.socket, arguments: bytes) -> None:
    """Entry point of the forked process: load the model, report that, and serve until the replica closes."""
    config, revision = wire.decode_arguments(arguments)
    started = time.monotonic()
    try:
        runner, follower_pids = load(config, connection)
        drafter = make_drafter(config, runner.max_model_len)
        engine = Engine(runner, config, revision, runner.adapters, drafter)
    except Exception as error:  # whatever is wrong with the model is reported to the replica, not a crash
        failure = _load_failure(error, config)
        logger.error("loading failed: %s", type(error).__name__)
        connection.sendall(wire.encode_frame(failure))
        return
    load_s = round(time.monotonic() - started, 3)
    info = msgspec.structs.replace(engine.info, architecture=runner.model_config.architecture, load_s=load_s)
    facts = {"load_s": info.load_s, "layout": info.layout_tag, "num_blocks": info.num_blocks}
    logger.info("loaded", extra=facts | runner.load_phases.fields())
    try:
        connection.sendall(wire.encode_frame(wire.Loaded(info, engine.status(), follower_pids)))
    except (BrokenPipeError, ConnectionResetError):
        return  # the replica was closed meanwhile
    serve(connection, engine, config.device)


def _load_failure(error: Exception, config: EngineConfig) -> wire.LoadFailed:
    if isinstance(error, torch.OutOfMemoryError):
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else CPU
        return wire.LoadFailed(describe_shortage(error, free_memory_bytes(device), config.device))
    is_device_lost = isinstance(error, DeviceLost)
    return wire.LoadFailed(str(error) if is_device_lost else f"{type(error).__name__}: {error}", is_device_lost)


def serve(connection: socket.socket, engine: Engine, device: str = "cpu") -> None:
    """Receive, step and send until the replica closes its end. `device` is named if it fails."""
    gc.collect()
    gc.freeze()  # the loaded model is permanent: collections need not traverse it
    gc.disable()
    inbox = _Inbox(connection)
    try:
        while True:
            if not (engine.has_work or inbox.change is not None):
                _use_idle_time(connection, engine)
            if not inbox.drain(engine):
                return
            if inbox.change is not None and not engine.has_work:
                connection.sendall(wire.encode_frame(_sleep_or_wake(inbox.take_change(), engine)))
            if engine.has_work:
                with log_faults(device, lambda: engine.scheduler.num_steps):
                    report = engine.step()
                connection.sendall(wire.encode_report(report, engine.status()))
    except (BrokenPipeError, ConnectionResetError):
        return
    finally:
        gc.enable()


def _sleep_or_wake(change: wire.Sleep | wire.Wake, engine: Engine) -> wire.SleepDone:
    try:
        report = engine.sleep(change.snapshot) if isinstance(change, wire.Sleep) else engine.wake()
    except SleepFailed as error:
        return wire.SleepDone(failure=str(error))
    logger.info("asleep" if report.is_asleep else "awake", extra=msgspec.structs.asdict(report))
    return wire.SleepDone(report)


def _use_idle_time(connection: socket.socket, engine: Engine) -> None:
    """Collect garbage, and prepare for constraints if there is no work for a while."""
    gc.collect()
    if not engine.matchers.is_warm and not select.select([connection], [], [], _IDLE_S)[0]:
        engine.matchers.warm_up()


class _Inbox:
    """Passes received work to the engine. `change` is a request that waits until the engine has no work."""

    def __init__(self, connection: socket.socket) -> None:
        self.change: wire.Sleep | wire.Wake | None = None
        self._connection = connection
        self._reader = FrameReader()

    def take_change(self) -> wire.Sleep | wire.Wake:
        change, self.change = self.change, None
        assert change is not None
        return change

    def drain(self, engine: Engine) -> bool:
        """Receive all pending work; wait for some if the engine has none. Return False if the replica closed."""
        while True:
            try:
                must_wait = not engine.has_work and self.change is None
                data = self._connection.recv(_RECEIVE_BYTES, 0 if must_wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not data:
                return False
            for payload in self._reader.feed(data):
                message = wire.decode_to_rank(payload)
                if isinstance(message, wire.Work):
                    _apply(message, engine)
                else:
                    self.change = message
            if len(data) < _RECEIVE_BYTES and engine.has_work:
                return True


def _apply(work: wire.Work, engine: Engine) -> None:
    for raw in work.adds:
        try:
            request = wire.decode_request(raw)
        except (msgspec.DecodeError, ValueError) as error:
            logger.warning("request cannot be decoded: %s", type(error).__name__)
            engine.reject(wire.sequence_id_of(raw))
        else:
            engine.add(request)
    for sequence_id in work.aborts:
        engine.abort(sequence_id)
