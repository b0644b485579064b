"""Wait for asyncio events with a timeout, and complete futures that may have been cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeVar

T = TypeVar("T")


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> None:
    """Return when the event is set, or after `timeout_s` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def complete(waiter: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    """Set the error if there is one, else the result. Does nothing if the future is already done or cancelled."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(result)
    else:
        waiter.set_exception(error)
