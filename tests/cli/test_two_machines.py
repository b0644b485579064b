"""docs/two_machines.md: its commands build a platform with Postgres, Redis, S3, TLS and two nodes, as written.

Two folders stand for the two machines, 127.0.0.1 and 127.0.0.2 for their addresses, and a script for `scp`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import is_running
from tests.waiting import wait_until_blocking

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "two_machines.md"
SCP = """#!/bin/sh
# scp -qpr FOLDER 10.0.0.2:hearth/PATH
exec cp -pr "$2" "$MACHINES/b/${3#*:hearth/}"
"""

has_tools = shutil.which("curl") and shutil.which("openssl")
pytestmark = [pytest.mark.full, pytest.mark.skipif(not has_tools, reason="curl or openssl is not installed")]


@pytest.fixture
def machines() -> Iterator[Path]:
    """A folder with the checkouts `a` and `b`, and `bin`. Its processes are stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="hearth-two-") as name:
        folder = Path(name)
        for machine in ("a", "b"):
            (folder / machine).mkdir()
            (folder / machine / ".venv").symlink_to(sys.prefix)
            (folder / machine / "catalog").symlink_to(ROOT / "catalog")
        (folder / "bin").mkdir()
        (folder / "bin" / "scp").write_text(SCP)
        (folder / "bin" / "scp").chmod(0o755)
        yield folder


def blocks() -> list[tuple[str, str]]:
    """Return (machine, commands) for every block that the page tells the reader to run from section 2 on."""
    found = re.findall(r"```sh( machine-b)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [("b" if machine else "a", commands) for machine, commands in found]


def with_own_stores(commands: str, postgres_url: str, redis_url: str, s3_url: str) -> str:
    """Replace the page's addresses and credentials of the stores, and its ports."""
    ports = {"8787": str(free_port()), "8789": str(free_port())}
    for old, new in {
        "postgresql://hearth:DB_PASSWORD@127.0.0.1:5432/hearth": f"'{postgres_url}'",
        "redis://:REDIS_PASSWORD@10.0.0.1:6379/0": redis_url,
        "http://10.0.0.1:9000": s3_url,
        "10.0.0.": "127.0.0.",
        r"10\.0\.0\.": r"127\.0\.0\.",
        "HEARTH_HOST=": f"HEARTH_PORT={ports['8787']}\nHEARTH_HOST=",
        **{f":{port}": f":{free}" for port, free in ports.items()},
    }.items():
        assert old in commands, old
        commands = commands.replace(old, new)
    return commands


def run_page(machines: Path, commands: list[tuple[str, str]]) -> str:
    """Run the blocks in one shell, in the folder of machine A, and return the output.

    Blocks of machine B run in its folder with a clean environment. All processes are stopped at the end.
    """
    script = ""
    for machine, block in commands:
        if machine == "b":
            (machines / "b.sh").write_text(block)
            clean = f"env -i PATH='{os.environ['PATH']}' PYTHONPATH='{ROOT}' HEARTH_NODE_HTTP=127.0.0.1:{free_port()}"
            block = f"(cd ../b; exec {clean} sh -eu ../b.sh)\n"
        script += block
    environ = {name: value for name, value in os.environ.items() if not re.match("HEARTH_|AWS_|[A-Z]+_URL$", name)}
    environ |= {
        "PATH": f"{machines / 'bin'}:{os.environ['PATH']}",
        "MACHINES": str(machines),
        "PYTHONPATH": str(ROOT),
        "HEARTH_NODE_HTTP": f"127.0.0.1:{free_port()}",
    }
    with (machines / "out").open("w") as out:
        process = subprocess.Popen(
            ["sh", "-euc", script],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=machines / "a",
            start_new_session=True,
        )
    status: int | None = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=110)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        wait_until_blocking(lambda: not has_processes(process.pid))
    output = (machines / "out").read_text()
    logs = "".join(path.read_text()[-3000:] for path in machines.glob("?/site/*.log"))
    assert status == 0, output + logs
    return output


def has_processes(group: int) -> bool:
    """Return True if a process of the group still runs."""
    groups = (path.parent.name for path in Path("/proc").glob("[0-9]*/stat"))
    return any(is_running(int(pid)) and group_of(int(pid)) == group for pid in groups)


def group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_commands_of_the_page_give_two_teams_their_own_limits_on_two_machines(
    machines: Path, postgres_url: str, redis_url: str, s3_server: str
) -> None:
    marker = "\n===block===\n"
    page = blocks()
    text = with_own_stores(marker.join(commands for _, commands in page), postgres_url, redis_url, s3_server)
    text = text.replace("S3_KEY", "testing").replace("S3_SECRET", "testing")
    output = run_page(machines, list(zip((machine for machine, _ in page), text.split(marker), strict=True)))
    answers = [line for line in output.splitlines() if '"success":' in line]
    assert ['"success":true' in answer for answer in answers] == [True, True, True, False, False, True], output
    assert '"code":971,' in answers[3]
    assert '"code":10000,' in answers[4]
