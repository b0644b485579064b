"""A headless Chromium, controlled through its debugging pipe: opens a page and records its network requests.

Needs no driver beside the browser. Commands and events are JSON, each terminated by a zero byte, on file descriptors 3
and 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
_OPTIONS = (
    "--headless=shell", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--remote-debugging-pipe", "--disable-background-networking", "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip


def find_chromium(clients_env: Path | None) -> str | None:
    """Return the command of HEARTH_CHROMIUM, of a browser on PATH, or of the one that `scripts/clients.sh` installs."""
    brought = None if clients_env is None else clients_env / "chromium"
    found = [os.environ.get("HEARTH_CHROMIUM"), *map(shutil.which, _NAMES)]
    if brought is not None and brought.exists():
        found.append(str(brought))
    return next(filter(None, found), None)


class Browser:
    """A browser with one page. `events` are all events received so far."""

    def __init__(self, command: str) -> None:
        self._profile = Path(tempfile.mkdtemp(prefix="hearth-browser-"))
        self.events: list[dict[str, Any]] = []
        self._num_sent = 0
        self._unread = b""
        self._session: str | None = None
        self._process = self._launch(command)
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def _launch(self, command: str) -> subprocess.Popen[bytes]:
        (child_in, self._out), (self._in, child_out) = os.pipe(), os.pipe()

        def arrange() -> None:
            high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (child_in, child_out)]
            for number, descriptor in enumerate(high, 3):
                os.dup2(descriptor, number)

        log = (self._profile / "log").open("wb")
        try:
            return subprocess.Popen(
                [command, *_OPTIONS, f"--user-data-dir={self._profile}", "about:blank"],
                preexec_fn=arrange, close_fds=False, stdout=log, stderr=log,
            )  # fmt: skip
        finally:
            log.close()
            os.close(child_in)
            os.close(child_out)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result. Raises RuntimeError with the browser's error."""
        self._num_sent += 1
        message = {"id": self._num_sent, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            response = self._read()
            if response.get("id") != self._num_sent:
                self.events.append(response)
            elif "error" in response:
                raise RuntimeError(f"{method}: {response['error']}")
            else:
                result: dict[str, Any] = response["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("the browser ended: " + (self._profile / "log").read_text(errors="replace")[-2000:])
            self._unread += piece
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression. Raises RuntimeError if it throws."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, expression: str, is_fine: Callable[[Any], bool] = bool, deadline_s: float = PATIENCE_S) -> Any:
        """Return the value of an expression once `is_fine` accepts it."""
        end = time.monotonic() + deadline_s
        while not is_fine(value := self.value(expression)):
            assert time.monotonic() < end, f"not within {deadline_s:g} s: {expression}: {value!r}"
            time.sleep(0.05)
        return value

    def event_params(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of all events with this name so far."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)
