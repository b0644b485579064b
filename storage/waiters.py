"""Complete asyncio futures that may have been cancelled."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def tell(waiter: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    """Set the error if there is one, else the result. Does nothing if the future is already done or cancelled."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(result)
    else:
        waiter.set_exception(error)
