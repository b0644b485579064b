"""Configure the logs of an engine process. Named as text to the zygote, which calls it in each process it forks."""

from __future__ import annotations

import os

from telemetry.logs import configure_logs


def configure(name: str) -> None:
    """Configure logging at the level of `HEARTH_LOG_LEVEL`."""
    configure_logs(f"node {name}", os.environ.get("HEARTH_LOG_LEVEL") or "info")
