"""A real Postgres for tests, from the `pgserver` wheel or from PATH, on a Unix socket.

Tests of outages can stop, kill, freeze and restart it. Postgres refuses to run as root, so for root it runs as
`nobody`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from telemetry.child_process import die_with_parent
from tests.waiting import PATIENCE_S, wait_until_blocking


def find_postgres() -> Path | None:
    """Return the folder of `initdb` and `postgres`, or None."""
    spec = importlib.util.find_spec("pgserver")
    candidates = []
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "pginstall" / "bin")
    on_path = shutil.which("initdb")
    if on_path is not None:
        candidates.append(Path(on_path).resolve().parent)
    return next((folder for folder in candidates if (folder / "initdb").exists()), None)


class PostgresServer:
    """One server with its data in a temporary folder. Raises RuntimeError if Postgres cannot run on this machine."""

    def __init__(self) -> None:
        binaries = find_postgres()
        if binaries is None:
            raise RuntimeError("no Postgres: neither the pgserver wheel nor initdb on PATH")
        self._user = "nobody" if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="hearth-pg-"))
        self.folder.chmod(0o755)
        self._binaries = self._reachable(binaries)
        self._data = self.folder / "data"
        self._data.mkdir()
        if self._user:
            shutil.chown(self._data, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"
        )

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self._data}"

    @property
    def socket_path(self) -> Path:
        """The path of the Unix socket."""
        return self._data / ".s.PGSQL.5432"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        # No test survives a power loss, so syncing files would only cost time.
        quick = ["fsync=off", "full_page_writes=off", "max_connections=60"]
        options = [
            word
            for setting in (*quick, "listen_addresses=", f"unix_socket_directories={self._data}")
            for word in ("-c", setting)
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._data,
                env=_clean_environment(),
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
            )
        wait_until_blocking(self._is_ready)

    def stop(self) -> None:
        """Shut down in fast mode: sessions are closed, committed transactions are durable."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        self._end(signal.SIGQUIT)

    def freeze(self) -> None:
        """Suspend the server: no session responds, and none is closed."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        self._process = None

    def _signal_all(self, number: signal.Signals) -> None:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in (self.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(FileNotFoundError):
            return (self._data / "postmaster.pid").read_text().rstrip().endswith("ready")
        return False

    def _reachable(self, binaries: Path) -> Path:
        """Return the binaries where the server's user can execute them: in place, or copied."""
        if self._user is None or self._can_run(binaries):
            return binaries
        shutil.copytree(binaries.parent, self.folder / "install", symlinks=True)
        copied = self.folder / "install" / "bin"
        if not self._can_run(copied):
            raise RuntimeError(f"the user {self._user} cannot execute Postgres from {copied}")
        return copied

    def _can_run(self, binaries: Path) -> bool:
        try:
            command = [str(binaries / "postgres"), "--version"]
            return subprocess.run(command, user=self._user, cwd="/", capture_output=True, check=False).returncode == 0
        except PermissionError:
            return False

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        done = subprocess.run(
            command, user=self._user, cwd=self._data, env=_clean_environment(), capture_output=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stderr.decode()}")


def _clean_environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
