"""Several ranks that share one model: a leader, which is the rank that the replica knows, and its followers.

The leader forks the others before it does anything else, so that they end with it, whatever ends it. It alone plans,
samples and holds sequences; each step goes to every follower over a socket of its own (`step_wire.py`), and all run the
same forward pass. A follower that ends takes the leader with it, and so the whole group: nobody computes with a part of
a model. To the replica a group is one process, whose end it knows what to do with.
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
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import Struct

from engine.adapters.updates import AdapterAdded, AdapterRemoved, AdapterUpdate
from engine.arrays import Ints
from engine.config import EngineConfig
from engine.devices.assignment import device_of
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
from telemetry.child_process import die_with_parent, how_it_ended, set_process_name

logger = logging.getLogger(__name__)


class GroupError(Exception):
    """A follower could not load its part, or is gone; the text says which and why."""


class _Setup(Struct, frozen=True, array_like=True):
    """What a follower is told first: how to run, and where the ranks meet."""

    arguments: bytes
    port: int


class _Ready(Struct, frozen=True, array_like=True):
    """What a follower says once: empty, or why it cannot."""

    failure: str = ""


@dataclass(frozen=True, eq=False)
class _Follower:
    rank: int
    pid: int
    channel: socket.socket

    @property
    def has_news(self) -> bool:
        """Whether it has said something that nobody has read."""
        return bool(select.select([self.channel], [], [], 0)[0]) and bool(self.channel.recv(1, socket.MSG_PEEK))


def load(config: EngineConfig, connection: socket.socket) -> tuple[Runner, tuple[int, ...]]:
    """The model, and the processes that share it besides this one. `connection` is this rank's to its replica, which no
    other may hold open. To be called while the process has one thread. Raises as Runner does, and GroupError."""
    size = config.tensor_parallel
    if size == 1:
        runner = Runner(config)
        runner.warm()
        return runner, ()
    fault = Shard(0, size).fault(read_config(config.model_dir).attention)
    if fault:
        raise UnsupportedModel(fault)
    followers = Followers.fork(size, connection)
    return followers.load(config), followers.pids


class Followers:
    """The leader's handle of the other ranks. Made by `fork`."""

    def __init__(self, followers: list[_Follower], connection: socket.socket) -> None:
        """`connection` is the leader's to its replica, which is told when a follower ends while all load."""
        self._followers, self._connection = followers, connection
        self._is_loaded = False
        self._block_size = 0
        self._news: deque[AdapterUpdate] = deque()  # of adapters, until the next step

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
        """The leader's runner, once every rank has its part. Raises as Runner does, and GroupError."""
        size = len(self._followers) + 1
        config = settle_dtype(config, Shard(0, size))
        device = device_of(config.device, 0, size)
        backend_of(device)  # before anybody waits for anybody
        meeting = Meeting(0, size)
        for follower in self._followers:
            _send(follower.channel, _Setup(wire.encode_arguments(config, ""), meeting.port))
        watch = threading.Thread(target=self._watch, name="ranks", daemon=True)
        watch.start()  # now: who meets waits for all, and would for a minute
        shard = Shard(0, size, meeting.join(device))
        self._block_size = config.block_size
        runner = Runner(config, shard=shard, announce=self._announce, announce_wipe=self._announce_wipe)
        if runner.adapters is not None:
            runner.adapters.news = self._news
        for follower in self._followers:
            _await_ready(follower, watch)
        self._is_loaded = True
        runner.warm()
        return runner

    def _announce(self, step: StepInputs) -> None:
        while self._news:
            self._tell(encode_adapter_update(self._news.popleft()))
        self._tell(encode_step(step, self._block_size))

    def _announce_wipe(self, block_ids: Ints) -> None:
        self._tell(encode_wipe(block_ids))

    def _tell(self, message: bytes) -> None:
        try:
            for follower in self._followers:
                follower.channel.sendall(message)
        except (BrokenPipeError, ConnectionResetError):
            raise GroupError("a follower is gone") from None

    def _watch(self) -> None:
        """End this process when a follower has ended, whatever it does. One that said why it cannot load has been
        heard, or will be."""
        poll, by_fd = select.poll(), {follower.channel.fileno(): follower for follower in self._followers}
        for fd in by_fd:
            poll.register(fd, 0)  # that the other end is closed is always told
        while True:
            fd = poll.poll()[0][0]
            if not by_fd[fd].has_news:
                break
            poll.unregister(fd)
        gone = by_fd[fd]
        how = f"rank {gone.rank} of {len(by_fd) + 1} {_how_ended(gone)}"
        logger.critical("%s", how)
        sys.stderr.flush()
        if not self._is_loaded:
            failure = wire.encode_frame(wire.LoadFailed(f"GroupError: {how} while loading; its log says why"))
            with contextlib.suppress(OSError):
                self._connection.sendall(failure)
        os._exit(1)


def _follow(channel: socket.socket, rank: int, size: int) -> None:
    """A follower's whole life."""
    data = receive_frame(channel)
    if data is None:
        return
    setup = msgspec.msgpack.decode(data, type=_Setup)
    config, _ = wire.decode_arguments(setup.arguments)
    group = Meeting(rank, size, setup.port).join(device_of(config.device, rank, size))
    try:
        runner = Runner(config, shard=Shard(rank, size, group))
    except Exception as error:  # news for the leader, as a leader's is for the replica
        _send(channel, _Ready(f"{type(error).__name__}: {error}"))
        return
    _send(channel, _Ready())
    gc.collect()
    gc.freeze()
    while (step := receive_step(channel)) is not None:
        obey(runner, step)


def obey(runner: Runner, message: StepInputs | Ints | AdapterUpdate) -> None:
    """What a follower does with what its leader says."""
    if isinstance(message, StepInputs):
        runner.forward(message)
    elif isinstance(message, AdapterAdded | AdapterRemoved):
        assert runner.adapters is not None, "the leader has adapters"
        runner.adapters.follow(message)
    else:
        runner.wipe(message)


def _await_ready(follower: _Follower, watch: threading.Thread) -> None:
    data = receive_frame(follower.channel)
    if data is None:
        watch.join()  # it ends this process
        raise GroupError(f"rank {follower.rank} is gone")
    ready = msgspec.msgpack.decode(data, type=_Ready)
    if ready.failure:
        raise GroupError(f"rank {follower.rank}: {ready.failure}")


def _how_ended(follower: _Follower) -> str:
    return how_it_ended(os.waitstatus_to_exitcode(os.waitpid(follower.pid, 0)[1]))


def _send(channel: socket.socket, message: _Setup | _Ready) -> None:
    channel.sendall(framed(msgspec.msgpack.encode(message)))
