"""Run `python -m gateway` with a wall clock that a test can shift while the gateway runs. The file in CLOCK_FILE
contains the offset in seconds. The monotonic clock and the clocks of Redis and the database are not shifted.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.__main__ import main
from telemetry.clock import SystemClock

_FILE = Path(os.environ["CLOCK_FILE"])
_real_time, _real_time_ns = time.time, time.time_ns


def wrong_by_s() -> float:
    return float(_FILE.read_text())


if __name__ == "__main__":
    SystemClock.now = lambda _clock: datetime.now(UTC) + timedelta(seconds=wrong_by_s())  # type: ignore[method-assign]
    time.time = lambda: _real_time() + wrong_by_s()
    time.time_ns = lambda: _real_time_ns() + int(wrong_by_s() * 1e9)
    sys.exit(main())
