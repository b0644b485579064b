"""Run functions in processes of their own: an illegal access or a hang in one leaves the others and their device alone.

The processes are forked from a server that has imported the engine, before any of them uses a device.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, NamedTuple

_PRELOADED = ["torch", "engine.loop", "engine.runner", "bench.device.families", "bench.device.kernels"]
_STARTED, _ENDED = "started", "ended"


class Message(NamedTuple):
    """The results of a process, or the error that ended it."""

    item: Any
    value: Any
    error: str = ""


class _Running(NamedTuple):
    item: Any
    process: ForkServerProcess
    end: float  # on the monotonic clock; set when the process has started


def prepare() -> None:
    """Start the server, whose imports then run beside those of this process."""
    _context().set_forkserver_preload(_PRELOADED)
    forkserver.ensure_running()


def run_each(
    function: Callable[[Any], Iterable[Any]], items: Iterable[Any], *, num_processes: int, until: float, limit_s: float
) -> Iterator[Message]:
    """Yield everything that `function` yields for each item, as it comes, and its error if it fails.

    At most `num_processes` run at once. A process that runs longer than `limit_s`, or beyond `until` on the monotonic
    clock, is killed; items that have not started then are reported as errors.
    """
    context = _context()
    waiting, running = list(items), dict[Connection, _Running]()
    try:
        while waiting or running:
            now = time.monotonic()
            while waiting and now < until and len(running) < num_processes:
                item = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(function, item, theirs), daemon=True)
                process.start()
                theirs.close()
                running[ours] = _Running(item, process, until)
            if waiting and not running:
                yield from (Message(item, None, "not run: out of time") for item in waiting)
                return
            first_end = min(each.end for each in running.values())
            for channel in wait(list(running), max(first_end - now, 0.01)):
                assert isinstance(channel, Connection)
                message = _receive(channel, running[channel])
                if message.value == _STARTED:
                    running[channel] = running[channel]._replace(end=min(time.monotonic() + limit_s, until))
                    continue
                if message.value == _ENDED or message.error:
                    _end(channel, running.pop(channel))
                if message.value != _ENDED:
                    yield message
            for channel, each in list(running.items()):
                if time.monotonic() > each.end:
                    _end(channel, running.pop(channel))
                    yield Message(each.item, None, "killed: it took too long")
    finally:
        for channel, each in running.items():
            _end(channel, each)


def _context() -> multiprocessing.context.ForkServerContext:
    return multiprocessing.get_context("forkserver")


def _run(function: Callable[[Any], Iterable[Any]], item: Any, channel: Connection) -> None:
    channel.send((_STARTED, ""))
    try:
        for value in function(item):
            channel.send((value, ""))
        channel.send((_ENDED, ""))
    except BrokenPipeError:  # the process is about to be killed
        return
    except BaseException:
        channel.send((None, traceback.format_exc()[-3000:]))


def _receive(channel: Connection, sender: _Running) -> Message:
    try:
        value, error = channel.recv()
    except EOFError:
        sender.process.join(5)
        return Message(sender.item, None, f"the process ended with status {sender.process.exitcode}")
    return Message(sender.item, value, error)


def _end(channel: Connection, each: _Running) -> None:
    channel.close()
    each.process.join(1.0)
    if each.process.is_alive() and each.process.pid:
        os.kill(each.process.pid, signal.SIGKILL)
    each.process.join(5)
