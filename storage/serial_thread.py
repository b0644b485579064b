"""One thread that runs functions in order for an event loop, with minimal overhead.

An executor's locks, callbacks and second future cost more than waking a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from storage.waiters import complete

T = TypeVar("T")


class SerialThread:
    """Starts with the first function. `close` must be the last call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[asyncio.Future[Any] | None, Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Return a future with the result or exception of `function`."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(future, function)
        return future

    def run_detached(self, function: Callable[[], object]) -> None:
        """Run `function` and ignore its outcome."""
        self._submit(None, function)

    def close(self) -> None:
        """Return when all submitted functions have finished."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def _submit(self, future: asyncio.Future[Any] | None, function: Callable[[], Any]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_all, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put((future, function))

    def _run_all(self) -> None:
        while (work := self._queue.get()) is not None:
            future, function = work
            result: Any = None
            error: BaseException | None = None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            if future is not None:
                with contextlib.suppress(RuntimeError):  # raised if the loop was closed: nothing waits for the result
                    future.get_loop().call_soon_threadsafe(complete, future, result, error)
            del work, future, function, result, error  # releases references while waiting
