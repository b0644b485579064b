"""An event loop whose clock a test owns: nobody waits, and time jumps to what happens next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Sockets are real, and what is written to one is there at once; seconds pass only when nothing else does."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        """The same, as a telemetry.clock.Clock says it."""
        return self.now_s


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everybody waits for somebody else")
        if not ready and timeout:
            self._loop.now_s += timeout
        return ready


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """`main` to its end, on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
