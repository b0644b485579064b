"""What every process of a node does when it starts: its logs.

`configure` is named as text to the warm parent, which calls it in itself and in every process it forks. Light to
import.
"""

from __future__ import annotations

import os

from telemetry.logs import configure_logs


def configure(name: str) -> None:
    """Logs of a process of this node, as loud as the settings say."""
    configure_logs(f"node {name}", os.environ.get("HEARTH_LOG_LEVEL") or "info")
