"""Several ranks that share one model: the leading rank, which the replica knows, and its followers.

The leader forks the followers before anything else, so that they end with it. Only the leader schedules, samples and
holds sequences. It sends each step to every follower over a socket (`step_wire.py`), and all ranks run the same forward
pass. If a follower ends, the leader ends too, and with it the whole group. To the replica the group is one process.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import socket
import sys
import threading
from collections import deque
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import torch
from msgspec import Struct

from engine.adapters.updates import AdapterAdded, AdapterRemoved, AdapterUpdate
from engine.arrays import Ints
from engine.config import EngineConfig
from engine.devices.assignment import device_of, free_memory_bytes, make_current
from engine.devices.faults import LOST_EXIT_CODE, DeviceLost, log_faults
from engine.inputs import StepInputs
from engine.kernels.collectives import Meeting, backend_of
from engine.layers.shard import Shard
from engine.models.config import UnsupportedModel
from engine.models.registry import read_config
from engine.processes.forked import run_and_exit
from engine.processes.frames import framed, receive_frame
from engine.ranks import wire
from engine.ranks.step_wire import encode_adapter_update, encode_step, encode_wipe, receive_step
from engine.runner import Runner, settle_dtype
from telemetry.child_process import describe_exit, die_with_parent, set_process_name

logger = logging.getLogger(__name__)

_KV_RATIO = 0.85  # part of the memory beside the weights that an automatic KV cache takes; a step uses the rest


class GroupError(Exception):
    """A follower could not load its shard or has ended. The message says which and why."""


class _Setup(Struct, frozen=True, array_like=True):
    """First message to a follower: the replica's arguments, and the port where the ranks meet."""

    arguments: bytes
    port: int


class _Ready(Struct, frozen=True, array_like=True):
    """The only message from a follower: empty, or why it cannot load."""

    failure: str = ""


@dataclass(frozen=True, eq=False)
class _Follower:
    rank: int
    pid: int
    channel: socket.socket

    @property
    def has_unread_message(self) -> bool:
        return bool(select.select([self.channel], [], [], 0)[0]) and bool(self.channel.recv(1, socket.MSG_PEEK))


def load(config: EngineConfig, connection: socket.socket) -> tuple[Runner, tuple[int, ...]]:
    """Load the model in this process and its followers. Return the runner and the process ids of the followers.

    `connection` is this rank's socket to its replica, which followers must not keep open. To be called while the
    process has one thread. Raises as Runner does, and GroupError.
    """
    size = config.tensor_parallel
    if size == 1:
        runner = Runner(config)
        runner.warm_up()
        return runner, ()
    fault = Shard(0, size).fault(read_config(config.model_dir).attention)
    if fault:
        raise UnsupportedModel(fault)
    followers = Followers.fork(size, connection)
    return followers.load(config), followers.pids


class Followers:
    """The leader's handle of the other ranks. Made by `fork`."""

    def __init__(self, followers: list[_Follower], connection: socket.socket) -> None:
        """`connection` is the leader's socket to its replica, which gets a message if a follower ends while loading."""
        self._followers, self._connection = followers, connection
        self._is_loaded = False
        self._block_size = 0
        self._adapter_updates: deque[AdapterUpdate] = deque()  # sent before the next step

    @classmethod
    def fork(cls, num_ranks: int, connection: socket.socket) -> Followers:
        leader_pid, followers = os.getpid(), list[_Follower]()
        for rank in range(1, num_ranks):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            pid = os.fork()
            if pid == 0:
                die_with_parent(leader_pid)
                for each in (connection, ours, *(follower.channel for follower in followers)):
                    each.close()
                set_process_name(f"hearth rank {rank}/{num_ranks}")
                run_and_exit(f"rank {rank} of {num_ranks}", partial(_follow, theirs, rank, num_ranks))
            theirs.close()
            followers.append(_Follower(rank, pid, ours))
        return cls(followers, connection)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(follower.pid for follower in self._followers)

    def load(self, config: EngineConfig) -> Runner:
        """Return the leader's runner once every rank has loaded its shard. Raises as Runner does, and GroupError."""
        size = len(self._followers) + 1
        config = settle_dtype(config, Shard(0, size))
        device = device_of(config.device, 0, size)
        config = _settle_kv(config, device)
        backend_of(device)  # raises before any rank waits for another
        meeting = Meeting(0, size)
        for follower in self._followers:
            _send(follower.channel, _Setup(wire.encode_arguments(config, ""), meeting.port))
        # Started before `join`, which would otherwise wait a minute for a follower that has ended.
        watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        watcher.start()
        shard = Shard(0, size, meeting.join(device))
        self._block_size = config.block_size
        runner = Runner(config, shard=shard, broadcast_step=self._broadcast_step, broadcast_wipe=self._broadcast_wipe)
        if runner.adapters is not None:
            runner.adapters.updates = self._adapter_updates
        for follower in self._followers:
            _wait_until_ready(follower, watcher)
        self._is_loaded = True
        runner.warm_up()
        return runner

    def _broadcast_step(self, step: StepInputs) -> None:
        while self._adapter_updates:
            self._broadcast(encode_adapter_update(self._adapter_updates.popleft()))
        self._broadcast(encode_step(step, self._block_size))

    def _broadcast_wipe(self, block_ids: Ints) -> None:
        self._broadcast(encode_wipe(block_ids))

    def _broadcast(self, message: bytes) -> None:
        try:
            for follower in self._followers:
                follower.channel.sendall(message)
        except (BrokenPipeError, ConnectionResetError):
            raise GroupError("a follower has ended") from None

    def _watch(self) -> None:
        """End this process when a follower has ended, except a follower that reported why it cannot load."""
        poll, by_fd = select.poll(), {follower.channel.fileno(): follower for follower in self._followers}
        for fd in by_fd:
            poll.register(fd, 0)  # POLLHUP is always reported
        while True:
            fd = poll.poll()[0][0]
            if not by_fd[fd].has_unread_message:
                break
            poll.unregister(fd)
        ended = by_fd[fd]
        code = _exit_code(ended)
        message = f"rank {ended.rank} of {len(by_fd) + 1} {describe_exit(code)}"
        logger.critical("%s", message)
        sys.stderr.flush()
        if not self._is_loaded:
            is_device_lost = code == LOST_EXIT_CODE
            failure = wire.encode_frame(
                wire.LoadFailed(f"GroupError: {message} while loading; see its log", is_device_lost)
            )
            with contextlib.suppress(OSError):
                self._connection.sendall(failure)
        os._exit(1)


def _settle_kv(config: EngineConfig, device: torch.device) -> EngineConfig:
    """Return `config` with an automatic KV cache resolved, so that all ranks have the same size: most of what is free
    on the leader's device, which the weights have not been read to yet."""
    if not config.is_kv_auto:
        return config
    files = config.model_dir.iterdir() if config.model_dir.is_dir() else [config.model_dir]
    weight_bytes = sum(each.stat().st_size for each in files if each.suffix in (".safetensors", ".gguf"))
    make_current(device)
    kv_bytes = int(_KV_RATIO * (free_memory_bytes(device) * config.tensor_parallel - weight_bytes))
    kv_bytes = max(1, min(kv_bytes, config.kv_memory_bytes or kv_bytes))
    return replace(config, kv_memory_bytes=kv_bytes, is_kv_auto=False)


def _follow(channel: socket.socket, rank: int, size: int) -> None:
    """Run a follower from setup until the leader closes the socket."""
    data = receive_frame(channel)
    if data is None:
        return
    setup = msgspec.msgpack.decode(data, type=_Setup)
    config, _ = wire.decode_arguments(setup.arguments)
    device = device_of(config.device, rank, size)
    try:
        group = Meeting(rank, size, setup.port).join(device)
    except DeviceLost as error:
        logger.critical("%s", error)
        raise SystemExit(LOST_EXIT_CODE) from error
    try:
        runner = Runner(config, shard=Shard(rank, size, group))
    except Exception as error:  # reported to the leader, whatever it is
        _send(channel, _Ready(f"{type(error).__name__}: {error}"))
        return
    _send(channel, _Ready())
    gc.collect()
    gc.freeze()
    while (message := receive_step(channel)) is not None:
        with log_faults(str(device), lambda: runner.num_steps):
            apply_message(runner, message)


def apply_message(runner: Runner, message: StepInputs | Ints | AdapterUpdate) -> None:
    """Do on a follower what a message of its leader says."""
    if isinstance(message, StepInputs):
        runner.forward(message)
    elif isinstance(message, AdapterAdded | AdapterRemoved):
        assert runner.adapters is not None, "all ranks support adapters or none does"
        runner.adapters.apply(message)
    else:
        runner.wipe(message)


def _wait_until_ready(follower: _Follower, watcher: threading.Thread) -> None:
    data = receive_frame(follower.channel)
    if data is None:
        watcher.join()  # ends this process
        raise GroupError(f"rank {follower.rank} has ended")
    ready = msgspec.msgpack.decode(data, type=_Ready)
    if ready.failure:
        raise GroupError(f"rank {follower.rank}: {ready.failure}")


def _exit_code(follower: _Follower) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(follower.pid, 0)[1])


def _send(channel: socket.socket, message: _Setup | _Ready) -> None:
    channel.sendall(framed(msgspec.msgpack.encode(message)))
