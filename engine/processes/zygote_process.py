"""Zygote process: has imported torch once and forks rank and worker processes.

`Zygote` (`zygote.py`) is the front process's handle; `python -m engine.processes.zygote_process` is the process. It is
single-threaded and never computes with torch, so that forking is safe, and it ends with its parent. A child runs an
entry point "module:function", called with its socket and the argument bytes. A branch is a child that is a zygote
itself: it imports one more module and forks children that need that module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from engine.processes.fork_messages import (
    MAX_MESSAGE_BYTES,
    BranchArguments,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    encoder,
    request_decoder,
)
from engine.processes.forked import run_and_exit
from telemetry.child_process import die_with_parent, set_process_name

logger = logging.getLogger(__name__)


def resolve(entry: str) -> Callable[..., Any]:
    """Return the function named by "module:function". Raises ImportError, AttributeError or ValueError."""
    module, separator, function = entry.partition(":")
    if not separator:
        raise ValueError(f"an entry point is module:function, not {entry!r}")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _serve(control: socket.socket, configure: Callable[[str], object] | None) -> None:
    """Fork on request and report the exit of children, until the front process closes its end."""
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
            control.send(encoder.encode(Exited(pid, code)))
        if control.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 1)
            if not data:
                return
            _fork_child(control, request_decoder.decode(data), fds[0], private, configure)


def _reap() -> list[tuple[int, int]]:
    """Return (pid, exit code) of the children that ended since the last call."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def _fork_child(
    control: socket.socket,
    request: Fork,
    fd: int,
    private: tuple[socket.socket, ...],
    configure: Callable[[str], object] | None,
) -> None:
    parent_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(fd)
        control.send(encoder.encode(ForkFailed(request.fork_id, str(error))))
        return
    if pid == 0:
        _run_child(request, fd, private, parent_pid, configure)
    os.close(fd)
    control.send(encoder.encode(Forked(request.fork_id, pid)))


def _run_child(
    request: Fork,
    fd: int,
    private: tuple[socket.socket, ...],
    parent_pid: int,
    configure: Callable[[str], object] | None,
) -> NoReturn:
    """Run the child until it exits."""

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


def main(arguments: list[str]) -> None:
    """Run `engine.processes.zygote_process PARENT_PID FD CONFIGURE [MODULE...]`."""
    parent_pid, fd, configure_entry, *preload = arguments
    die_with_parent(int(parent_pid))
    # A signal to the process group is handled by the front process, which drains and then closes the zygote.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # inherited by children
    control = socket.socket(fileno=int(fd))
    configure = resolve(configure_entry) if configure_entry else None
    set_process_name("hearth zygote")
    if configure is not None:
        configure("zygote")
    _import(*preload)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve(control, configure)
    os._exit(0)  # skips torch's slow and unneeded cleanup


def branch(control: socket.socket, arguments: bytes) -> None:
    """Entry point of a branch, which is forked like any child. A module that cannot be imported is left to the children
    that need it: they report the error."""
    options = msgspec.msgpack.decode(arguments, type=BranchArguments)
    try:
        _import(options.module)
    except Exception as error:  # packages raise other errors too if a part of them cannot be imported
        logger.warning("a library cannot be imported", extra={"module_name": options.module, "error": repr(error)})
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve(control, resolve(options.configure) if options.configure else None)


def _import(*modules: str) -> None:
    """Import the modules that children share."""
    started = time.monotonic()
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a child would copy these pages, which takes over 100 ms
    gc.disable()
    num_threads = threading.active_count()
    logger.info("warm", extra={"import_s": round(time.monotonic() - started, 2), "num_threads": num_threads})


if __name__ == "__main__":
    main(sys.argv[1:])
