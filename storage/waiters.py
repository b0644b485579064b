"""Who waits for something to be done: told what came of it, unless they have left meanwhile.

Knows futures, and nothing of what is waited for.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def tell(waiter: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    """The error if there is one, else the result; nothing to whoever was cancelled."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(result)
    else:
        waiter.set_exception(error)
