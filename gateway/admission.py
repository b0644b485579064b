"""Admission: limits the calls in flight in this process, in total and for each account.

How many slots an account may hold is decided by `telemetry/fair_share.py`. Slots are counted from before the body is
read. `tenants/quota/quota.py` counts the calls of all gateways.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator

from gateway.errors import Reason, Refusal
from telemetry import metrics
from telemetry.fair_share import AccountShares
from tenants.quota.pace import ReleasePace


@contextlib.contextmanager
def hold_share(shares: AccountShares, account_id: str) -> Iterator[None]:
    """Hold one unit of a limited resource while the block runs. Raises Refusal: OUT_OF_CAPACITY, or CONCURRENCY_LIMITED
    if the account holds too many units."""
    if not shares.num_free:
        raise Refusal(Reason.OUT_OF_CAPACITY)
    if shares.has_enough(account_id):
        raise Refusal(Reason.CONCURRENCY_LIMITED, "account")
    shares.take(account_id)
    try:
        yield
    finally:
        shares.give_back(account_id)


class ConcurrencySlot:
    """A slot, held while the `with` block runs. The pipeline sets `stop`, which ends the call early."""

    __slots__ = ("_admission", "account_id", "since_s", "stop")

    def __init__(self, admission: Admission, account_id: str, since_s: float) -> None:
        self._admission = admission
        self.account_id = account_id
        self.since_s = since_s
        self.stop: Callable[[], object] = _do_nothing

    def __enter__(self) -> ConcurrencySlot:
        return self

    def __exit__(self, *_error: object) -> None:
        self._admission.release(self)


def _do_nothing() -> None: ...


class Admission:
    """Counts the calls in flight in this process. Create it inside the event loop."""

    def __init__(self, max_calls: int) -> None:
        self._shares = AccountShares(max_calls)
        self._loop = asyncio.get_running_loop()
        self._slots: set[ConcurrencySlot] = set()
        self._pace = ReleasePace()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_draining = False
        metrics.CALLS_IN_FLIGHT.set_function(lambda: len(self._slots))

    def enter(self, account_id: str) -> ConcurrencySlot:
        """Return a slot for one call, to be used with `with`. Raises Refusal: DRAINING, OUT_OF_CAPACITY, or
        CONCURRENCY_LIMITED if the account holds too many slots."""
        if self.is_draining:
            raise Refusal(Reason.DRAINING)
        if not self._shares.num_free:
            raise Refusal(Reason.OUT_OF_CAPACITY)
        if self._shares.has_enough(account_id):
            wait_s = math.ceil(self._pace.next_s(account_id, self._shares.held_by(account_id)))
            raise Refusal(Reason.CONCURRENCY_LIMITED, "account", retry_after_s=wait_s)
        slot = ConcurrencySlot(self, account_id, self._loop.time())
        self._slots.add(slot)
        self._shares.take(account_id)
        self._is_empty.clear()
        return slot

    def release(self, slot: ConcurrencySlot) -> None:
        """Free a slot. Releasing a slot twice has no effect."""
        if slot not in self._slots:
            return
        self._slots.discard(slot)
        self._shares.give_back(slot.account_id)
        self._pace.record(slot.account_id, self._loop.time() - slot.since_s)
        if not self._slots:
            self._is_empty.set()

    def drain(self) -> None:
        """Refuse new calls from now on."""
        self.is_draining = True

    def stop_all(self) -> None:
        """End all calls in flight now."""
        for slot in list(self._slots):
            slot.stop()

    async def wait_empty(self) -> None:
        """Wait until no call is in flight."""
        await self._is_empty.wait()
