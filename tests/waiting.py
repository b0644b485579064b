"""Wait for a condition with a deadline. Tests use this instead of fixed sleeps."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0  # generous for a busy machine; only failing tests wait this long


async def wait_until(
    predicate: Callable[[], T | Awaitable[T]], deadline_s: float = PATIENCE_S, interval_s: float = 0.01
) -> T:
    """Call `predicate` (plain or async) until it returns something true, and return that.

    Raises AssertionError after `deadline_s`.
    """
    end = time.monotonic() + deadline_s
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(_given_up(predicate, value, deadline_s))
        await asyncio.sleep(interval_s)


def wait_until_blocking(predicate: Callable[[], T], deadline_s: float = PATIENCE_S, interval_s: float = 0.01) -> T:
    """`wait_until` for tests without an event loop."""
    end = time.monotonic() + deadline_s
    while not (value := predicate()):
        if time.monotonic() > end:
            raise AssertionError(_given_up(predicate, value, deadline_s))
        time.sleep(interval_s)
    return value


def wait_for_a_day_that_lasts(seconds: float) -> None:
    """Wait for the next UTC day if this one ends within `seconds`, for tests of daily sums."""
    while (left_s := 86_400 - time.time() % 86_400) < seconds:
        time.sleep(left_s)


def _given_up(predicate: Callable[[], object], value: object, deadline_s: float) -> str:
    source = inspect.getsource(predicate).strip()
    return f"still not true after {deadline_s:g} s, but {repr(value)[:500]}: {source}"
