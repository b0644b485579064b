"""The node front's handle of the warm parent, which has imported torch once and forks ranks and workers from that.

It starts `warm_parent.py` as a process of its own and asks it for children over one socket, a datagram a message, the
child's own socket passed along as a file descriptor. The parent dies with the front, its children with it. Imports no
torch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from engine.processes.fork_messages import (
    MAX_MESSAGE_BYTES,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    encoder,
    news_decoder,
)
from telemetry.child_process import Child

logger = logging.getLogger(__name__)

RANK_MODULES = ("torch", "engine.ranks.rank")

# Read when the OpenMP runtime starts, so they must be there before torch is imported: idle threads sleep, not spin.
PASSIVE_THREADS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_ARENA_MAX": "1",  # threads that load weights would each keep some of what they freed
}


class ZygoteError(Exception):
    """A child could not be forked."""


class Zygote:
    """The handle of a warm parent. Belongs to one event loop.

    `preload` names the modules it imports before it forks anything. `configure` is an entry point "module:function"
    called with the process's name in the warm parent and again in every child: where logs are set up. A warm parent
    that died is started anew by the next fork.
    """

    def __init__(
        self, *, preload: tuple[str, ...] = RANK_MODULES, configure: str = "", environ: Mapping[str, str] | None = None
    ) -> None:
        self._preload = preload
        self._configure = configure
        self._environ = dict(os.environ if environ is None else environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._next_fork_id = 0
        self._forks: dict[int, tuple[socket.socket, asyncio.Future[Child]]] = {}
        self._children: dict[int, Child] = {}

    @property
    def pid(self) -> int | None:
        """Of the warm parent, while it runs."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the warm parent. Returns at once: a fork asked for meanwhile waits until the imports are done."""
        if self._process is None:
            self._spawn()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [str(os.getpid()), str(theirs.fileno()), self._configure, *self._preload]
        with theirs:
            self._process = subprocess.Popen(  # a fork and exec, milliseconds
                [sys.executable, "-m", "engine.processes.zygote_process", *arguments],
                env={**self._environ, **PASSIVE_THREADS},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        ours.setblocking(False)
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_readable)

    async def fork(self, entry: str, arguments: bytes = b"", *, name: str = "") -> Child:
        """A child that runs `entry` ("module:function") as function(socket, arguments). Raises ZygoteError."""
        await self.start()
        assert self._socket is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
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
                raise ZygoteError(f"the warm parent is gone: {error}") from error
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(fork_id, future)
            raise

    def _abandon(self, fork_id: int, future: asyncio.Future[Child]) -> None:
        """Nobody waits for this fork any more: the child that comes of it sees its socket closed."""
        pending = self._forks.pop(fork_id, None)
        if pending is not None:
            pending[0].close()
        elif not future.cancelled() and future.exception() is None:
            future.result().socket.close()

    async def close(self) -> None:
        """End the warm parent and with it every child."""
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
                logger.error("the warm parent of the engine's processes ended")
                self._on_death()
                return
            self._on_news(news_decoder.decode(data))

    def _on_news(self, news: Forked | ForkFailed | Exited) -> None:
        if isinstance(news, Exited):
            child = self._children.pop(news.pid, None)
            if child is not None and not child.exited.done():
                child.exited.set_result(news.code)
            return
        ours, future = self._forks.pop(news.fork_id, (None, None))
        if ours is None or future is None:
            return
        if isinstance(news, ForkFailed):
            ours.close()
            if not future.done():
                future.set_exception(ZygoteError(news.message))
            return
        child = Child(news.pid, ours, asyncio.get_running_loop().create_future())
        self._children[news.pid] = child
        if future.done():
            ours.close()
        else:
            future.set_result(child)

    def _on_death(self) -> None:
        """The warm parent is gone or told to go; so is every child."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._process, process = None, self._process
        if process is not None:
            process.kill()
            process.wait()  # milliseconds: it holds nothing that must be put in order
        forks, self._forks = self._forks, {}
        for ours, future in forks.values():
            ours.close()
            if not future.done():
                future.set_exception(ZygoteError("the warm parent ended"))
        children, self._children = self._children, {}
        for child in children.values():
            if not child.exited.done():
                child.exited.set_result(-signal.SIGKILL)
