"""Stop signals of a process in the foreground: stop, stop faster, kill."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KILL_AFTER_S = 10.0


class StopSignals:
    """Handle SIGINT, SIGTERM and SIGHUP in the running event loop.

    The first signal requests a stop. The second calls `force(SIGTERM)`, and `force(SIGKILL)` ten seconds later. The
    third calls `force(SIGKILL)` at once.
    """

    def __init__(self, force: Callable[[int], None]) -> None:
        self._force = force
        self._count = 0
        self._requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal)

    async def finishes_before_stop(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await `work` and return True; cancel it and return False if a stop is requested first."""
        job = asyncio.create_task(work)
        requested = asyncio.create_task(self._requested.wait())
        try:
            await asyncio.wait({job, requested}, return_when=asyncio.FIRST_COMPLETED)
            if job.done():
                job.result()
            return job.done()
        finally:
            job.cancel()
            requested.cancel()
            await asyncio.gather(job, requested, return_exceptions=True)

    def _on_signal(self) -> None:
        self._count += 1
        self._requested.set()
        if self._count == 2:
            self._force(signal.SIGTERM)
            self._loop.call_later(_KILL_AFTER_S, self._force, signal.SIGKILL)
        elif self._count > 2:
            self._force(signal.SIGKILL)
