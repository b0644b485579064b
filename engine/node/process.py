"""What every process of a node does when it starts: logs, and leaving with whoever started it.

`configure` is named as text to the warm parent, which calls it in itself and in every process it forks. Light to
import.
"""

from __future__ import annotations

import ctypes
import os
import signal

from telemetry.logs import configure_logs

_PR_SET_PDEATHSIG = 1


def configure(name: str) -> None:
    """Logs of a process of this node, as loud as the settings say."""
    configure_logs(f"node {name}", os.environ.get("HEARTH_LOG_LEVEL") or "info")


def drain_when_parent_dies() -> None:
    """Have the kernel send this process SIGTERM when the one that started it ends; at once if that has happened."""
    parent_pid = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGTERM)
