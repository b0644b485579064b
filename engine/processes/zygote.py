"""Zygote: the front process's handle of a process that has imported torch once and forks ranks and workers.

Starts `zygote_process.py` and requests children over one socket, one datagram per message; the child's socket is passed
as a file descriptor. The zygote ends with the front process, and its children with it. Imports no torch.

A branch is a child of the zygote that is a zygote itself. It imports a library that only some models need, such as
`transformers`, when the first of them is loaded: further loads do not repeat the import, and share its memory.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from engine.processes.fork_messages import (
    MAX_MESSAGE_BYTES,
    BranchArguments,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    encoder,
    report_decoder,
)
from telemetry.child_process import Child

logger = logging.getLogger(__name__)

RANK_MODULES = ("torch", "engine.ranks.rank")
_GPU_MODULES = ("fused", "attention", "parts", "store", "sampler")  # modules with kernels that every model needs

# Idle threads sleep instead of spinning. OpenMP reads these when torch is imported, so they must be set before.
PASSIVE_THREADS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_ARENA_MAX": "1",  # threads that load weights would each keep some of what they freed
}


def rank_modules(device: str) -> tuple[str, ...]:
    """Return the modules that ranks need, with those of Triton's kernels if models run on a GPU. Importing them uses no
    GPU, so that a process may fork afterwards."""
    if device == "cpu" or importlib.util.find_spec("triton") is None:
        return RANK_MODULES
    return (*RANK_MODULES, *(f"engine.kernels.triton_{name}" for name in _GPU_MODULES))


class ZygoteError(Exception):
    """A child could not be forked."""


class Zygote:
    """The handle of a zygote process. Belongs to one event loop.

    `preload` are the modules it imports before it forks. `configure` is an entry point "module:function" called with
    the process's name in the zygote and in every child; it sets up logging. A zygote that has ended is restarted by the
    next fork.
    """

    def __init__(
        self, *, preload: tuple[str, ...] = RANK_MODULES, configure: str = "", environ: Mapping[str, str] | None = None
    ) -> None:
        self._preload = preload
        self.configure = configure
        self._environ = dict(os.environ if environ is None else environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._next_fork_id = 0
        self._forks: dict[int, tuple[socket.socket, asyncio.Future[Child]]] = {}
        self._children: dict[int, Child] = {}
        self._branches: dict[str, _Branch] = {}

    def branch(self, module: str) -> Zygote:
        """Return the branch that imports `module`. Its process starts with its first fork, and ends with this one."""
        if module not in self._branches:
            self._branches[module] = _Branch(self, module)
        return self._branches[module]

    @property
    def pid(self) -> int | None:
        """Process id of the zygote while it runs."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the zygote. Returns at once; forks wait until its imports are done."""
        if self._process is None:
            self._listen(self._spawn())

    def _spawn(self) -> socket.socket:
        """Start the process and return this end of its socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [str(os.getpid()), str(theirs.fileno()), self.configure, *self._preload]
        with theirs:
            self._process = subprocess.Popen(  # takes milliseconds
                [sys.executable, "-m", "engine.processes.zygote_process", *arguments],
                env={**self._environ, **PASSIVE_THREADS},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        return ours

    def _listen(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_readable)

    async def fork(
        self, entry: str, arguments: bytes = b"", *, name: str = "", socket_type: int = socket.SOCK_STREAM
    ) -> Child:
        """Return a child that runs `entry` ("module:function") as function(socket, arguments). Raises ZygoteError."""
        await self.start()
        assert self._socket is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket_type)
        self._next_fork_id += 1
        fork_id = self._next_fork_id
        future: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._forks[fork_id] = (ours, future)
        with theirs:
            message = encoder.encode(Fork(fork_id, entry, arguments, name))
            try:
                socket.send_fds(self._socket, [message], [theirs.fileno()])
            except OSError as error:
                self._on_death()
                raise ZygoteError(f"the zygote process has ended: {error}") from error
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(fork_id, future)
            raise

    def _abandon(self, fork_id: int, future: asyncio.Future[Child]) -> None:
        """Close the socket of a child that is not needed any more: the child exits when it sees that."""
        pending = self._forks.pop(fork_id, None)
        if pending is not None:
            pending[0].close()
        elif not future.cancelled() and future.exception() is None:
            future.result().socket.close()

    async def close(self) -> None:
        """End the zygote and with it every child and branch."""
        for branch in self._branches.values():
            await branch.close()
        self._on_death()

    def _on_readable(self) -> None:
        assert self._socket is not None
        while self._socket is not None:
            try:
                data = self._socket.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                logger.error("zygote process ended")
                self._on_death()
                return
            self._on_message(report_decoder.decode(data))

    def _on_message(self, message: Forked | ForkFailed | Exited) -> None:
        if isinstance(message, Exited):
            child = self._children.pop(message.pid, None)
            if child is not None and not child.exited.done():
                child.exited.set_result(message.code)
            return
        ours, future = self._forks.pop(message.fork_id, (None, None))
        if ours is None or future is None:
            return
        if isinstance(message, ForkFailed):
            ours.close()
            if not future.done():
                future.set_exception(ZygoteError(message.message))
            return
        child = Child(message.pid, ours, asyncio.get_running_loop().create_future())
        self._children[message.pid] = child
        if future.done():
            ours.close()
        else:
            future.set_result(child)

    def _on_death(self) -> None:
        """Clean up after the zygote and its children, killing it if it runs."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._kill()
        forks, self._forks = self._forks, {}
        for ours, future in forks.values():
            ours.close()
            if not future.done():
                future.set_exception(ZygoteError("the zygote process ended"))
        children, self._children = self._children, {}
        for child in children.values():
            if not child.exited.done():
                child.exited.set_result(-signal.SIGKILL)

    def _kill(self) -> None:
        """Kill the process if it runs."""
        self._process, process = None, self._process
        if process is not None:
            process.kill()
            process.wait()  # takes milliseconds, because the process has no state to save


class _Branch(Zygote):
    """A zygote that `trunk` forks."""

    def __init__(self, trunk: Zygote, module: str) -> None:
        super().__init__(preload=())
        self._trunk = trunk
        self._module = module
        self._child: Child | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def start(self) -> None:
        """Fork the branch's process. Returns at once; forks wait until its import is done. Raises ZygoteError."""
        async with self._starting:
            if self._child is None:
                arguments = msgspec.msgpack.encode(BranchArguments(self._module, self._trunk.configure))
                entry = "engine.processes.zygote_process:branch"
                self._child = await self._trunk.fork(entry, arguments, name="zygote", socket_type=socket.SOCK_SEQPACKET)
                self._listen(self._child.socket)

    def _kill(self) -> None:
        self._child, child = None, self._child
        if child is not None:
            child.kill()
