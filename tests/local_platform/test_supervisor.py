import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from local_platform.supervisor import Child, ChildFailed, ChildSpec, last_line
from tests.processes import is_running
from tests.waiting import wait_until


def child_of(tmp_path: Path, script: str, notes: list[str] | None = None) -> Child:
    command = (sys.executable, "-c", textwrap.dedent(script))
    spec = ChildSpec("node x", command, dict(os.environ), tmp_path / "x.log")
    return Child(spec, lambda _child, text: (notes if notes is not None else []).append(text))


async def test_child_runs_until_stopped_and_writes_to_its_log(tmp_path: Path):
    child = child_of(tmp_path, "import time; print('hello', flush=True); time.sleep(60)")
    await child.start()
    await wait_until(lambda: "hello" in (tmp_path / "x.log").read_text())
    pid = child.pid
    assert pid is not None
    await child.stop(grace_s=5)
    assert child.pid is None
    assert not is_running(pid)


async def test_child_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path):
    script = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print('ready', flush=True)
        time.sleep(60)
    """
    child = child_of(tmp_path, script)
    await child.start()
    await wait_until(lambda: "ready" in (tmp_path / "x.log").read_text())
    await child.stop(grace_s=0.1)
    assert child.pid is None


async def test_killed_child_is_restarted(tmp_path: Path):
    notes: list[str] = []
    child = child_of(tmp_path, "import time; time.sleep(60)", notes)
    await child.start()
    child.mark_started()
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await wait_until(lambda: child.pid not in (None, first))
    await child.stop(grace_s=5)
    assert "was killed by SIGKILL" in notes[0]
    assert notes[1] == "restarted"


async def test_restart_delay_doubles(tmp_path: Path):
    notes: list[str] = []
    child = child_of(tmp_path, "raise SystemExit(3)", notes)
    child.mark_started()
    await child.start()
    await wait_until(lambda: len([note for note in notes if "restarting" in note]) >= 3)
    await child.stop(grace_s=5)
    delays = [note.split(" in ")[1].split(" s")[0] for note in notes if "restarting" in note]
    assert delays[:3] == ["0.2", "0.4", "0.8"]


async def test_child_that_exits_during_start_fails_the_start_with_its_last_log_line(tmp_path: Path):
    child = child_of(tmp_path, "import sys; sys.exit('HEARTH_X is not set')")
    await child.start()
    with pytest.raises(ChildFailed, match="node x exited with status 1: HEARTH_X is not set"):
        await child.failed()
    await child.stop(grace_s=5)


async def test_missing_executable_raises_child_failed(tmp_path: Path):
    spec = ChildSpec("node x", ("/no/such/program",), {}, tmp_path / "x.log")
    with pytest.raises(ChildFailed, match="node x cannot be started"):
        await Child(spec, lambda *_: None).start()


async def test_children_are_killed_with_their_supervisor(tmp_path: Path):
    script = f"""
        import asyncio, sys
        from pathlib import Path
        from local_platform.supervisor import Child, ChildSpec
        async def main():
            command = (sys.executable, "-c", "import time; time.sleep(60)")
            child = Child(ChildSpec("x", command, {{}}, Path({str(tmp_path / "y.log")!r})), lambda *_: None)
            await child.start()
            print(child.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
    """
    command = (sys.executable, "-c", textwrap.dedent(script))
    parent = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    await parent.wait()
    await wait_until(lambda: not is_running(pid))


def test_last_line_skips_blank_lines(tmp_path: Path):
    log = tmp_path / "x.log"
    assert last_line(log) == "no log"
    log.write_text("first\nlast message\n\n")
    assert last_line(log) == "last message"


async def test_large_log_is_rotated_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("local_platform.supervisor._MAX_LOG_BYTES", 4)
    (tmp_path / "x.log").write_text("old log")
    child = child_of(tmp_path, "")
    child.mark_started()
    await child.start()
    await child.stop(grace_s=5)
    assert (tmp_path / "x.log.1").read_text() == "old log"
