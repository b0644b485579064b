"""The warm parent: a process that has imported torch once and forks ranks and workers from that.

`Zygote` is the node front's handle; `python -m engine.processes.zygote` is the process. They talk over one socket, a
datagram a message, the child's own socket passed along as a file descriptor. The process stays single-threaded and
never computes with torch, so that a fork is safe. It dies with its parent, its children with it. What a child does is
an entry point, "module:function", called with its socket and the argument bytes; the front's side of the file imports
no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from telemetry.child_process import Child, die_with_parent, set_process_name

logger = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 64 * 1024

RANK_MODULES = ("torch", "engine.rank")

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


class _Fork(Struct, frozen=True, tag="fork"):
    fork_id: int
    entry: str
    arguments: bytes
    name: str


class _Forked(Struct, frozen=True, tag="forked"):
    fork_id: int
    pid: int


class _ForkFailed(Struct, frozen=True, tag="fork_failed"):
    fork_id: int
    message: str


class _Exited(Struct, frozen=True, tag="exited"):
    pid: int
    code: int  # as subprocess has it: negative for a signal


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(_Fork)
_news_decoder: msgspec.msgpack.Decoder[_Forked | _ForkFailed | _Exited] = msgspec.msgpack.Decoder(
    _Forked | _ForkFailed | _Exited
)


# ── the node front's side ────────────────────────────────────────────────────────────────────────────────────────────


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
                [sys.executable, "-m", "engine.processes.zygote", *arguments],
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
            message = _encoder.encode(_Fork(fork_id, entry, arguments, name))
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
                data = self._socket.recv(_MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                logger.error("the warm parent of the engine's processes ended")
                self._on_death()
                return
            self._on_news(_news_decoder.decode(data))

    def _on_news(self, news: _Forked | _ForkFailed | _Exited) -> None:
        if isinstance(news, _Exited):
            child = self._children.pop(news.pid, None)
            if child is not None and not child.exited.done():
                child.exited.set_result(news.code)
            return
        ours, future = self._forks.pop(news.fork_id, (None, None))
        if ours is None or future is None:
            return
        if isinstance(news, _ForkFailed):
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


# ── the warm parent itself ───────────────────────────────────────────────────────────────────────────────────────────


def resolve(entry: str) -> Callable[..., Any]:
    """The function that "module:function" names. Raises ImportError, AttributeError or ValueError."""
    module, separator, function = entry.partition(":")
    if not separator:
        raise ValueError(f"an entry point is module:function, not {entry!r}")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _serve(control: socket.socket, configure: Callable[[str], object] | None) -> None:
    """Fork on request and report the children that ended, until the front closes its end."""
    wakeup, wakeup_write = socket.socketpair()
    wakeup.setblocking(False)
    wakeup_write.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    poll.register(wakeup.fileno(), select.POLLIN)
    private = (control, wakeup, wakeup_write)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if wakeup.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                wakeup.recv(4096)
        for pid, code in _reap():
            control.send(_encoder.encode(_Exited(pid, code)))
        if control.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(control, _MAX_MESSAGE_BYTES, 1)
            if not data:
                return
            _answer(control, _request_decoder.decode(data), fds[0], private, configure)


def _reap() -> list[tuple[int, int]]:
    """(pid, exit code) of the children that ended since last time."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def _answer(
    control: socket.socket,
    request: _Fork,
    fd: int,
    private: tuple[socket.socket, ...],
    configure: Callable[[str], object] | None,
) -> None:
    parent_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(fd)
        control.send(_encoder.encode(_ForkFailed(request.fork_id, str(error))))
        return
    if pid == 0:
        _run_child(request, fd, private, parent_pid, configure)
    os.close(fd)
    control.send(_encoder.encode(_Forked(request.fork_id, pid)))


def _run_child(
    request: _Fork,
    fd: int,
    private: tuple[socket.socket, ...],
    parent_pid: int,
    configure: Callable[[str], object] | None,
) -> NoReturn:
    """The child's whole life."""

    def work() -> None:
        die_with_parent(parent_pid)
        gc.enable()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in private:
            each.close()
        name = request.name or request.entry.partition(":")[0]
        set_process_name(f"hearth {name}")
        if configure is not None:
            configure(name)
        resolve(request.entry)(socket.socket(fileno=fd), request.arguments)

    run_and_exit(request.entry, work)


def run_and_exit(what: str, work: Callable[[], None]) -> NoReturn:
    """`work`, and then the end of the process, whatever came of it."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as error:  # the process's outermost loop
        logger.critical("%s ended by %s at %s", what, _said(error), _frames(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _said(error: BaseException) -> str:
    """The error's type; its own text only where that cannot hold a caller's content."""
    is_harmless = isinstance(error, OSError | MemoryError | ImportError)
    return f"{type(error).__name__}: {error}" if is_harmless else type(error).__name__


def _frames(error: BaseException) -> str:
    """Where it happened, innermost last, as file:line in one line."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{code.co_filename}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return " > ".join(frames)


def main(arguments: list[str]) -> None:
    """`engine.processes.zygote PARENT_PID FD CONFIGURE [MODULE...]`: what the handle starts."""
    parent_pid, fd, configure_entry, *preload = arguments
    die_with_parent(int(parent_pid))
    for each in (signal.SIGINT, signal.SIGTERM):  # sent to a whole group they are the front's to answer: it drains,
        signal.signal(each, signal.SIG_IGN)  # then closes us; children inherit this
    control = socket.socket(fileno=int(fd))
    configure = resolve(configure_entry) if configure_entry else None
    set_process_name("hearth zygote")
    if configure is not None:
        configure("zygote")
    started = time.monotonic()
    for module in preload:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a child that looked at all of this would copy its pages: 100 ms and more
    gc.disable()
    num_threads = threading.active_count()
    logger.info("warm", extra={"import_s": round(time.monotonic() - started, 2), "num_threads": num_threads})
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve(control, configure)
    os._exit(0)  # torch has nothing to put in order, and takes its time doing so


if __name__ == "__main__":
    main(sys.argv[1:])
