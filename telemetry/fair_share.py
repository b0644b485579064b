"""Fair shares of a resource of this process, such as slots, connections or child processes, between accounts.

`AccountShares` counts what each account holds and says when an account has enough: for resources that a request takes
or is refused. `FairQueue` lets requests wait and serves accounts in turn. `current_account` names the account on whose
behalf a task works, for layers that know no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextvars import ContextVar

SHARE = 2
PLATFORM = ""
UNAUTHENTICATED = "unauthenticated"

current_account: ContextVar[str] = ContextVar("current_account", default=PLATFORM)
"""The account id for which the current task works; PLATFORM for background jobs."""


class AccountShares:
    """Counts the units of a resource that accounts hold.

    An account may hold at most SHARE times as many units as are free: two thirds of all while the account is alone,
    fewer the more others hold. So some units are always free for accounts that come next.
    """

    def __init__(self, num_units: int) -> None:
        self.num_units = num_units
        self.num_held = 0
        self._held: dict[str, int] = {}

    def held_by(self, account_id: str) -> int:
        return self._held.get(account_id, 0)

    @property
    def num_free(self) -> int:
        return self.num_units - self.num_held

    def has_enough(self, account_id: str) -> bool:
        """Return True if the account may not take another unit, although one may be free."""
        return self.held_by(account_id) >= SHARE * self.num_free

    def take(self, account_id: str) -> None:
        """Count one unit."""
        self._held[account_id] = self.held_by(account_id) + 1
        self.num_held += 1

    def give_back(self, account_id: str) -> None:
        """Stop counting one unit."""
        num_held = self._held.pop(account_id) - 1
        if num_held:
            self._held[account_id] = num_held
        self.num_held -= 1


class NoTurn(TimeoutError):
    """No slot became free in time."""


class FairQueue:
    """Slots for which accounts wait in turn.

    By default, one account holds at most two thirds of the slots (at least one), so that a free slot remains for other
    accounts whatever one account does; the platform's own jobs may hold all. A slot that becomes free goes to the
    waiting account that was served least recently. Within an account, the order is first come, first served.
    """

    def __init__(self, num_slots: int, max_per_account: int | None = None) -> None:
        self.num_slots = num_slots
        self.max_per_account = max(1, num_slots * 2 // 3) if max_per_account is None else max_per_account
        self._num_taken = 0
        self._held: dict[str, int] = {}
        # The waiting requests of each account; accounts in the order in which they are served next.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def held_by(self, account_id: str) -> int:
        return self._held.get(account_id, 0)

    @contextlib.asynccontextmanager
    async def slot(self, account_id: str, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Hold a slot while the block runs. Raises NoTurn if none becomes free within `timeout_s`."""
        if not self._try_take(account_id):
            await self._wait(account_id, timeout_s)
        try:
            yield
        finally:
            self._release(account_id)

    def _try_take(self, account_id: str) -> bool:
        if self._num_taken >= self.num_slots or not self._may_take(account_id):
            return False
        self._num_taken += 1
        self._held[account_id] = self.held_by(account_id) + 1
        return True

    def _may_take(self, account_id: str) -> bool:
        return account_id == PLATFORM or self.held_by(account_id) < self.max_per_account

    async def _wait(self, account_id: str, timeout_s: float | None) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account_id, deque()).append(turn)
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # the slot was given to a task that no longer wants it
                self._release(account_id)
            else:
                self._leave(account_id, turn)
            if isinstance(error, TimeoutError):
                raise NoTurn from None
            raise

    def _leave(self, account_id: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(account_id)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[account_id]

    def _release(self, account_id: str) -> None:
        num_held = self._held.pop(account_id) - 1
        if num_held:
            self._held[account_id] = num_held
        self._num_taken -= 1
        self._serve_next()

    def _serve_next(self) -> None:
        """Give free slots to waiting accounts in turn."""
        while self._num_taken < self.num_slots:
            account_id = next(filter(self._may_take, self._waiting), None)
            if account_id is None:
                return
            turns = self._waiting[account_id]
            turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(account_id)
            else:
                del self._waiting[account_id]
            if not turn.done():
                self._try_take(account_id)
                turn.set_result(None)
