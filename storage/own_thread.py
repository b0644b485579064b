"""One thread that executes functions in order for an event loop, with minimal overhead.

An executor's locks, callbacks and second future cost more than waking a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from storage.waiters import tell

T = TypeVar("T")


class OwnThread:
    """Starts with the first function. `close` must be the last call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: SimpleQueue[tuple[asyncio.Future[Any] | None, Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return a future with the result or exception of `work`."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._ask(future, work)
        return future

    def do_aside(self, work: Callable[[], object]) -> None:
        """Execute `work` and ignore its outcome."""
        self._ask(None, work)

    def close(self) -> None:
        """Return when all submitted functions have finished."""
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join()

    def _ask(self, future: asyncio.Future[Any] | None, work: Callable[[], Any]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._asked.put((future, work))

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, work = asked
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            if future is not None:
                with contextlib.suppress(RuntimeError):  # the loop was closed, so nothing waits for the result
                    future.get_loop().call_soon_threadsafe(tell, future, result, error)
            del asked, future, work, result, error  # releases references while waiting
