"""The zygote forks children on request, reports how they ended, and leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from engine.processes.zygote import Zygote, ZygoteError
from telemetry.child_process import Child
from tests.processes import children_of, is_running, num_threads
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ECHO = "tests.fakes.child:echo"


async def said_by(child: Child, count: int) -> bytes:
    child.socket.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(child.socket, count)


async def test_a_child_runs_its_entry_point_with_its_socket_and_arguments(zygote: Zygote):
    child = await zygote.fork(ECHO, b"first words")
    assert await said_by(child, 100) == b"first words"
    child.socket.send(b"again")
    assert await said_by(child, 100) == b"again"
    assert is_running(child.pid)
    child.socket.close()
    assert await child.wait() == 0


async def test_children_live_side_by_side(zygote: Zygote):
    children = await asyncio.gather(*(zygote.fork(ECHO, bytes([65 + number])) for number in range(5)))
    assert [await said_by(child, 10) for child in children] == [b"A", b"B", b"C", b"D", b"E"]
    assert len({child.pid for child in children}) == 5
    for child in children:
        child.socket.close()
    assert [await child.wait() for child in children] == [0] * 5


async def test_exit_code_of_a_child_is_reported(zygote: Zygote):
    left = await zygote.fork("tests.fakes.child:leaving", b"7")
    killed = await zygote.fork(ECHO)
    killed.kill()
    absent = await zygote.fork("tests.fakes.child:nothing_of_that_name")
    assert [await each.wait() for each in (left, killed, absent)] == [7, -signal.SIGKILL, 1]
    for each in (left, killed, absent):
        each.socket.close()
        each.kill()  # long gone: nothing happens


async def test_zygote_has_one_thread(zygote: Zygote):
    child = await zygote.fork(ECHO, b"x")
    await said_by(child, 1)
    assert zygote.pid is not None
    assert num_threads(zygote.pid) == 1
    child.socket.close()


async def test_cancelled_fork_leaves_no_process(zygote: Zygote):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(zygote.fork(ECHO), 0)
    child = await zygote.fork(ECHO, b"x")
    await said_by(child, 1)
    assert zygote.pid is not None
    parent_pid = zygote.pid
    await wait_until(lambda: children_of(parent_pid) == [child.pid])
    child.socket.close()


async def test_children_end_with_the_zygote_and_the_next_fork_starts_a_new_zygote(caplog):
    zygote = Zygote(preload=())
    try:
        child = await zygote.fork(ECHO, b"x")
        first_pid = zygote.pid
        assert first_pid is not None
        os.kill(first_pid, signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
        await wait_until(lambda: not is_running(child.pid))
        child.socket.close()
        again = await zygote.fork(ECHO, b"y")
        assert zygote.pid != first_pid
        assert await said_by(again, 1) == b"y"
        again.socket.close()
    finally:
        await zygote.close()


async def test_pending_forks_fail_when_the_zygote_dies(caplog):
    zygote = Zygote(preload=())
    await zygote.start()
    assert zygote.pid is not None
    os.kill(zygote.pid, signal.SIGSTOP)  # it does not get round to it
    fork = asyncio.ensure_future(zygote.fork(ECHO))
    await asyncio.sleep(0)
    os.kill(zygote.pid, signal.SIGKILL)
    with pytest.raises(ZygoteError):
        await fork
    await zygote.close()


_FRONT = """
import asyncio
from engine.processes.zygote import Zygote

async def main():
    zygote = Zygote(preload=())
    child = await zygote.fork("tests.fakes.child:echo")
    print(zygote.pid, child.pid, flush=True)
    await child.wait()

asyncio.run(main())
"""


async def test_zygote_and_children_end_with_a_killed_front_process():
    front = await asyncio.create_subprocess_exec(sys.executable, "-c", _FRONT, stdout=subprocess.PIPE)
    assert front.stdout is not None
    pids = [int(text) for text in (await front.stdout.readline()).split()]
    assert len(pids) == 2
    assert all(is_running(pid) for pid in pids)
    front.kill()
    await front.wait()
    await wait_until(lambda: not any(is_running(pid) for pid in pids))


async def test_configure_runs_in_the_zygote_and_in_children(capfd):
    zygote = Zygote(configure="telemetry.logs:configure_logs", preload=())
    child = await zygote.fork("tests.fakes.child:leaving", b"no number", name="worker")
    assert await child.wait() == 1
    child.socket.close()
    await zygote.close()
    lines = capfd.readouterr().err
    assert '"process": "worker"' in lines
    assert "ended by ValueError" in lines
    assert "no number" not in lines, "an error's own text may hold a caller's content"


async def test_children_of_a_branch_share_its_import(zygote: Zygote):
    branch = zygote.branch("mailbox")
    children = [await each.fork("tests.fakes.child:has_imported", b"mailbox") for each in (branch, branch, zygote)]
    assert [await said_by(child, 10) for child in children] == [b"True", b"True", b"False"]
    assert zygote.branch("mailbox") is branch
    assert [await child.wait() for child in children] == [0, 0, 0]
    assert branch.pid is not None
    assert num_threads(branch.pid) == 1
    for child in children:
        child.socket.close()


async def test_loads_that_begin_together_start_one_branch(zygote: Zygote):
    branch = zygote.branch("nntplib_that_does_not_exist")
    children = await asyncio.gather(*(branch.fork(ECHO, b"x") for _ in range(3)))
    assert [await said_by(child, 1) for child in children] == [b"x"] * 3, "a failed import is left to the children"
    assert branch.pid is not None
    assert sorted(children_of(branch.pid)) == sorted(child.pid for child in children)
    for child in children:
        child.socket.close()


async def test_killed_branch_ends_its_children_and_is_started_again(zygote: Zygote, caplog):
    branch = zygote.branch("mailbox")
    child = await branch.fork(ECHO, b"x")
    first_pid = branch.pid
    assert first_pid is not None
    os.kill(first_pid, signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    await wait_until(lambda: not is_running(child.pid))
    child.socket.close()
    again = await branch.fork(ECHO, b"y")
    assert branch.pid != first_pid
    assert await said_by(again, 1) == b"y"
    again.socket.close()


async def test_branches_end_with_the_zygote():
    zygote = Zygote(preload=())
    child = await zygote.branch("mailbox").fork(ECHO, b"x")
    branch_pid = zygote.branch("mailbox").pid
    assert branch_pid is not None
    await zygote.close()
    assert await child.wait() == -signal.SIGKILL
    await wait_until(lambda: not is_running(branch_pid) and not is_running(child.pid))
    child.socket.close()
