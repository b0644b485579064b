"""Admission: limits the calls in flight in this process, in total and for each account.

An account may hold at most SHARE times as many slots as are free: two thirds of all slots while it is alone, fewer the
more other accounts hold. So some slots are always free for accounts that call next, without any setting. Slots are
counted from before the body is read. `tenants/quota/quota.py` counts the calls of all gateways.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from gateway.errors import Reason, Refusal
from telemetry import metrics
from tenants.quota.pace import ReleasePace

SHARE = 2


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
        self._max_calls = max_calls
        self._loop = asyncio.get_running_loop()
        self._slots: set[ConcurrencySlot] = set()
        self._num_held: dict[str, int] = {}  # by account
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
        num_free = self._max_calls - len(self._slots)
        if num_free <= 0:
            raise Refusal(Reason.OUT_OF_CAPACITY)
        num_held = self._num_held.get(account_id, 0)
        if num_held >= SHARE * num_free:
            wait_s = math.ceil(self._pace.next_s(account_id, num_held))
            raise Refusal(Reason.CONCURRENCY_LIMITED, "account", retry_after_s=wait_s)
        slot = ConcurrencySlot(self, account_id, self._loop.time())
        self._slots.add(slot)
        self._num_held[account_id] = num_held + 1
        self._is_empty.clear()
        return slot

    def release(self, slot: ConcurrencySlot) -> None:
        """Free a slot. Releasing a slot twice has no effect."""
        if slot not in self._slots:
            return
        self._slots.discard(slot)
        account_id = slot.account_id
        num_held = self._num_held[account_id] - 1
        if num_held:
            self._num_held[account_id] = num_held
        else:
            del self._num_held[account_id]
        self._pace.record(account_id, self._loop.time() - slot.since_s)
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
