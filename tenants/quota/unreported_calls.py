"""Reservations and settlements that Redis has not received, kept until Redis is available again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from storage.errors import StoreUnavailable
from storage.redis_link import Reply, Sender
from tenants.quota import quota_script as script
from tenants.quota.quota_plan import Reservation

MAX_UNREPORTED = 10_000  # limit for each list; the windows of older calls have ended

Settlement = tuple[Reservation, int, int]
"""A reservation, and the tokens and micro-neurons that were used."""


class UnreportedCalls:
    """The unreported calls of one gateway, the oldest first."""

    def __init__(self) -> None:
        self._reservations: deque[tuple[Reservation, float]] = deque(maxlen=MAX_UNREPORTED)
        self._settlements: deque[Settlement] = deque(maxlen=MAX_UNREPORTED)

    def __bool__(self) -> bool:
        return bool(self._reservations or self._settlements)

    def add_reservation(self, reservation: Reservation, now_s: float) -> None:
        self._reservations.append((reservation, now_s))

    def add_settlements(self, settlements: Sequence[Settlement]) -> None:
        self._settlements.extend(settlements)

    def send(
        self, link: Sender, *, epoch: str, lease_ms: int, running: Mapping[str, Reservation], now_s: float
    ) -> asyncio.Future[list[Reply]]:
        """Send everything, and return the replies. What Redis does not accept stays unreported; receiving a call twice
        has no effect in Redis. Raises StoreUnavailable."""
        reservations, settlements = list(self._reservations), list(self._settlements)
        self._reservations.clear()
        self._settlements.clear()

        def keep() -> None:
            self._reservations.extendleft(reversed(reservations))
            self._settlements.extendleft(reversed(settlements))

        def on_replies(done: asyncio.Future[list[Reply]]) -> None:
            is_lost = done.cancelled() or done.exception() is not None
            if is_lost or any(isinstance(reply, Exception) for reply in done.result()):
                keep()
                if not is_lost:
                    link.drop("an unreported call was refused")

        commands = [
            each.reserve_command(epoch, lease_ms, script.FORCED) for each in _relevant(reservations, running, now_s)
        ]
        for reservation in running.values():
            commands += reservation.release_waiting_commands()
        commands += [each.settle_command(lease_ms, tokens, spent) for each, tokens, spent in settlements]
        try:
            replies = asyncio.gather(*[link.send(each) for each in commands])
        except StoreUnavailable:
            keep()
            raise
        replies.add_done_callback(on_replies)
        return replies


def _relevant(
    reservations: Sequence[tuple[Reservation, float]], running: Mapping[str, Reservation], now_s: float
) -> Iterator[Reservation]:
    """Yield the reservations that still affect a limit, marked as counted."""
    for reservation, since_s in reservations:
        items = reservation.plan.items
        is_over = all(now_s - since_s > item.span_ms / 1000 for item in items if item.kind in "rt")
        if is_over and reservation.op not in running and not any(item.kind == "b" for item in items):
            continue
        reservation.is_counted = True
        yield reservation
