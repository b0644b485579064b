"""telemetry/child_process.py: a child exits with its parent, and the parent learns how the child exited."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from functools import partial

import pytest

from telemetry.child_process import Child, describe_exit, die_with_parent
from tests.processes import is_running
from tests.waiting import wait_until_blocking

_PARENT = """
import os, signal, sys, time
from telemetry.child_process import die_with_parent
parent = os.getpid()
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"terminated\\n"), os._exit(0)))
    die_with_parent(number=signal.Signals(int(sys.argv[1])))
    print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("number", "last_words"), [(signal.SIGTERM, "terminated\n"), (signal.SIGKILL, "")])
def test_child_gets_its_chosen_signal_when_the_parent_exits(number: signal.Signals, last_words: str):
    command = [sys.executable, "-c", _PARENT, str(number.value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == last_words
        wait_until_blocking(lambda: not is_running(child))


def test_child_exits_at_once_if_the_parent_has_already_exited():
    arm = partial(die_with_parent, os.getpid() + 1, signal.SIGKILL)  # another process id, as if the parent had exited
    with subprocess.Popen(["sleep", "60"], preexec_fn=arm, stderr=subprocess.DEVNULL) as child:
        assert child.wait(10) == -signal.SIGKILL


def test_process_name_is_truncated_to_15_bytes():
    lines = (
        "import telemetry.child_process as c",
        "c.set_process_name('hearth ranks of a model')",
        "print(open('/proc/self/comm').read())",
    )
    shown = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "hearth ranks of"


def test_exit_code_is_described():
    assert describe_exit(-9) == "was killed by signal 9"
    assert describe_exit(3) == "ended with exit code 3"


async def test_child_that_does_not_exit_in_time_is_killed():
    process = await asyncio.create_subprocess_exec("sleep", "60")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        exited = asyncio.ensure_future(process.wait())
        child = Child(process.pid, ours, exited)
        assert await child.end(0.05) == -signal.SIGKILL
        child.kill()  # no effect after the exit
