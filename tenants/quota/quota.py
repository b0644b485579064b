"""Quota enforcement: reserve quota for each call in Redis, and settle the reservation when the call ends.

All gateways count in one place (`quota_script.py`), so limits hold for any number of gateways. If Redis is
unavailable, each gateway enforces its own share (`local_quota.py`) and reports its calls to Redis later; calls with a
budget are rejected. If Redis has lost its data, gateways restore windows as last seen, running calls, and budgets from
the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import uuid
from collections.abc import Sequence
from typing import Protocol

from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from storage.redis_link import CommandRefused, RedisLink, Reply, Sender, command, raise_if_refused
from telemetry import metrics
from telemetry.bounded_cache import BoundedCache
from tenants.quota import quota_script as script
from tenants.quota.gateway_presence import GatewayPresence
from tenants.quota.limits import Item
from tenants.quota.local_quota import LocalQuota
from tenants.quota.pace import ReleasePace
from tenants.quota.quota_plan import NO_PLAN, Budget, Plan, QuotaExceeded, Reservation, WindowStatus
from tenants.quota.unreported_calls import Settlement, UnreportedCalls

log = logging.getLogger(__name__)

FLUSH_S = 0.010
LEASE_MARGIN_S = 10.0  # time that a call may exceed its deadline before its lease expires
MAX_SHARES_S = 3.0  # time that shares stay in force after Redis has recovered; twice the longest reconnect interval
MAX_REJECTION_CACHE_S = 1.0  # a call that was rejected is rejected again without asking Redis
MAX_PLANS = 20_000
_MAX_TRIES = 4


class Budgets(Protocol):
    """The source of what accounts have used of their budgets: the usage ledger."""

    async def used(self, budget: Budget) -> int:
        """Return the micro-neurons used of a budget. Raises StoreUnavailable."""
        ...


class Quota:
    """One gateway's access to the shared counters. `run` must run in the background. `lease_s` must exceed any call's
    duration."""

    def __init__(
        self,
        url: str,
        ephemeral: Ephemeral,
        *,
        timeout_s: float,
        lease_s: float,
        budgets: Budgets | None = None,
        pop: str = "",
        version: str = "",
    ) -> None:
        self._link = RedisLink(url, timeout_s=timeout_s, on_open=self._on_redis_recovered)
        self._lease_ms = round(lease_s * 1000)
        self._budgets = budgets
        self._loop = asyncio.get_running_loop()
        self._local = LocalQuota()
        self._presence = GatewayPresence(ephemeral, self._local, pop=pop, version=version)
        self._pace = ReleasePace()
        self._epoch = ""
        self._adopting = asyncio.Lock()
        self._running: dict[str, Reservation] = {}
        self._settling: list[Settlement] = []
        self._pipelined: list[bytes] = []
        self._flush_timer: asyncio.TimerHandle | None = None
        self._unreported = UnreportedCalls()
        self._plans: BoundedCache[tuple[str, tuple[Item, ...], tuple[Budget, ...]], Plan] = BoundedCache(MAX_PLANS)
        self._seeding_tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def gateway_id(self) -> str:
        """The id of this gateway in Redis."""
        return self._presence.gateway_id

    def plan(self, account_id: str, items: tuple[Item, ...], budgets: tuple[Budget, ...] = ()) -> Plan:
        """Return the plan for these items; the same object for the same arguments."""
        if not items and not budgets:
            return NO_PLAN
        key = (account_id, items, budgets)
        found = self._plans.get(key)
        if found is None:
            found = Plan(account_id, items, budgets)
            self._plans.put(key, found)
        return found

    async def reserve(self, plan: Plan, op: str, *, tokens: int = 0, micro_neurons: int = 0) -> Reservation:
        """Reserve quota for a call in every window, concurrency limit and budget that applies to it.

        Raises QuotaExceeded, or StoreUnavailable if Redis is unavailable and a budget requires Redis.
        """
        reservation = Reservation(plan, op, tokens, micro_neurons)
        if not plan.items:
            return reservation
        self._raise_cached_refusal(plan)
        has_share = self._take_share_after_outage(reservation)
        unreported = self._settling
        try:
            numbers = await self._evaluate(reservation, script.NORMAL)
            if unreported and self._is_refused_for_unreported(plan, numbers, unreported):
                self._flush()
                numbers = await self._evaluate(reservation, script.NORMAL)
        except StoreUnavailable:
            self._reserve_locally(reservation, has_share=has_share)
        else:
            self._record(reservation, numbers)
        self._running[op] = reservation
        if plan.has_calls:
            reservation.since_s = self._loop.time()
            self._local.begin_call(plan.items)
        return reservation

    async def count_request(self, plan: Plan, op: str) -> Reservation:
        """Count a request that holds no reservation after it is counted. Raises QuotaExceeded."""
        reservation = Reservation(plan, op, 0, 0)
        if not plan.items:
            return reservation
        self._raise_cached_refusal(plan)
        has_share = self._take_share_after_outage(reservation)
        try:
            numbers = await self._evaluate(reservation, script.COUNT_ONLY)
        except StoreUnavailable:
            self._reserve_locally(reservation, has_share=has_share)
        else:
            self._record(reservation, numbers)
        return reservation

    def release_waiting(self, reservation: Reservation) -> None:
        """Release the slots that a call holds only until its first output. Reported to Redis within FLUSH_S."""
        waiting = reservation.plan.waiting
        if waiting and not reservation.has_output and reservation.op in self._running:
            self._release(reservation, waiting)
            reservation.has_output = True
            self.pipeline(*reservation.release_waiting_commands())

    def settle(self, reservation: Reservation, *, tokens: int = 0, micro_neurons: int = 0) -> None:
        """Settle a reservation with the actual usage of the call. Reported to Redis within FLUSH_S."""
        plan = reservation.plan
        if not plan.items or self._running.pop(reservation.op, None) is None:
            return
        if plan.has_calls:
            self._release(reservation, plan.items)
        self._settling.append((reservation, tokens, micro_neurons))
        self._flush_soon()

    def pipeline(self, *commands: bytes) -> None:
        """Send commands whose replies are not needed, together with the next flush. They are lost if Redis is
        unavailable."""
        self._pipelined += commands
        self._flush_soon()

    @property
    def is_available(self) -> bool:
        """Return True if the connection to Redis is open."""
        return self._link.is_open

    def send(self, command: bytes) -> asyncio.Future[Reply] | None:
        """Send one command on this connection; return None if Redis is unavailable."""
        try:
            return self._link.send(command) if self._link.is_open else None
        except StoreUnavailable:
            return None

    async def raise_used(self, key: str, micro_neurons: int) -> None:
        """Raise the used amount of a budget to at least `micro_neurons`. Budgets that Redis does not know stay
        unknown. Raises StoreUnavailable."""
        reply = await self._link.send(command("EVALSHA", script.SHA["raise"], 1, key, micro_neurons))
        if isinstance(reply, CommandRefused):
            raise StoreUnavailable(f"redis: {reply.code}")

    async def open(self) -> None:
        """Try once to connect to Redis. Raises StoreUnavailable."""
        try:
            await self._link.open()
        except CommandRefused as error:
            raise StoreUnavailable(f"redis: {error.code}") from None

    async def run(self) -> None:
        """Keep the connection to Redis open and count the running gateways, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._link.run())
            group.create_task(self._presence.run())

    async def close(self) -> None:
        """Report everything that has not been reported yet, then close the connection."""
        self._flush()
        with contextlib.suppress(StoreUnavailable, CommandRefused):
            await self._link.send(command("PING"))
        await self._presence.withdraw()
        self._link.close()

    def _raise_cached_refusal(self, plan: Plan) -> None:
        if plan.refusal is not None:
            if self._loop.time() < plan.refused_until_s:
                known = plan.refusal
                # A new exception, because an exception keeps the traceback of its first raise.
                raise QuotaExceeded(known.item, known.retry_after_s, known.window_statuses)
            plan.refusal = None

    def _take_share_after_outage(self, reservation: Reservation) -> bool:
        """Take quota from this gateway's share and return True, if Redis has just recovered. Raises QuotaExceeded.

        Redis may not know the calls of other gateways yet, because they reconnect later.
        """
        now_s = self._loop.time()
        left_s = self._local.shares_left_s(now_s)
        if not left_s or not self._link.is_open:
            return False
        refused = self._local.take(reservation.plan.items, reservation.tokens, now_s)
        if refused is not None:
            item, wait_s = refused
            statuses = self._local_statuses(reservation.plan.items, now_s)
            raise QuotaExceeded(item, max(1, math.ceil(min(wait_s, left_s))), statuses)
        return True

    @staticmethod
    def _is_refused_for_unreported(plan: Plan, numbers: list[int], unreported: Sequence[Settlement]) -> bool:
        """Return True if Redis rejects a call because of quota that ended calls have released but Redis did not know
        yet. Without this check, sequential calls could be rejected because of each other."""
        if numbers[0] != script.REFUSED:
            return False
        item = plan.items[numbers[1] - 1]
        return item.kind != "r" and any(item in left.plan.items for left, *_ in unreported)

    async def _evaluate(self, reservation: Reservation, mode: int) -> list[int]:
        """Run the reserve script and return its numbers. Raises StoreUnavailable."""
        plan = reservation.plan
        for _ in range(_MAX_TRIES):
            epoch = self._epoch
            reply = await self._link.send(reservation.reserve_command(epoch, self._lease_ms, mode))
            if isinstance(reply, CommandRefused):
                await self._reload_scripts(reply)
                continue
            assert isinstance(reply, bytes)
            first, _, payload = reply.partition(b" ")
            status = int(first)
            if status not in (script.NEW_EPOCH, script.UNKNOWN_BUDGET):
                return [status, *map(int, payload.split())]
            try:
                if status == script.NEW_EPOCH:
                    await self._adopt_epoch(self._link, epoch, payload.decode())
                else:
                    await self._seed_budget(plan.budgets[int(payload) - 1 - len(plan.items)])
            except CommandRefused as error:
                await self._reload_scripts(error)
        raise StoreUnavailable("redis: scripts or budgets disappear as soon as they are stored")

    async def _reload_scripts(self, refused: CommandRefused) -> None:
        """Load the scripts again after Redis has lost them. Raises StoreUnavailable for any other refusal."""
        if refused.code != "NOSCRIPT":
            self._link.drop(refused.code)
            raise StoreUnavailable(f"redis: {refused.code}")
        await self._load_scripts(self._link)

    def _record(self, reservation: Reservation, numbers: list[int]) -> None:
        """Store the reported state of all windows. Raises QuotaExceeded if the numbers say so."""
        items = reservation.plan.items
        now_s = self._loop.time()
        reservation.window_statuses = window_statuses = []
        at = 3
        for item in items:
            if item.kind in "rt":
                used, left_ms = numbers[at], numbers[at + 1]
                self._local.record(item, used, now_s + left_ms / 1000, now_s)
                left = item.limit - used
                window_statuses.append(WindowStatus(item, left if left > 0 else 0, -(-left_ms // 1000) or 1))
            at += 2
        if numbers[0] == script.REFUSED:
            item, wait_s = items[numbers[1] - 1], numbers[2] / 1000
            if item.kind == "c":
                wait_s = self._pace.next_s(item.key, item.limit)
            refusal = QuotaExceeded(item, max(1, math.ceil(wait_s)), reservation.window_statuses)
            if item.kind == "r":  # requests are never released before the window ends
                reservation.plan.refusal = refusal
                reservation.plan.refused_until_s = now_s + min(wait_s, MAX_REJECTION_CACHE_S)
            raise refusal

    def _reserve_locally(self, reservation: Reservation, *, has_share: bool) -> None:
        """Reserve from this gateway's own share, unless `has_share`. Raises QuotaExceeded, StoreUnavailable."""
        items, now_s = reservation.plan.items, self._loop.time()
        if any(item.requires_redis for item in items):
            raise StoreUnavailable("redis: unavailable, and the call has a budget that only Redis can check")
        self._local.on_redis_unavailable()
        refused = None if has_share else self._local.take(items, reservation.tokens, now_s)
        reservation.window_statuses = self._local_statuses(items, now_s)
        if refused is not None:
            item, wait_s = refused
            if item.kind == "c":
                wait_s = self._pace.next_s(item.key, item.limit)
            raise QuotaExceeded(item, max(1, math.ceil(wait_s)), reservation.window_statuses)
        metrics.LOCAL_QUOTA_CALLS.inc()
        reservation.is_counted = False
        self._unreported.add_reservation(reservation, now_s)

    def _local_statuses(self, items: Sequence[Item], now_s: float) -> list[WindowStatus]:
        """Return the state of all windows by this gateway's shares."""
        states = [(item, *self._local.state_of(item, now_s)) for item in items if item.kind in "rt"]
        return [
            WindowStatus(item, max(0, item.limit - used), max(1, math.ceil(left_s))) for item, used, left_s in states
        ]

    def _release(self, reservation: Reservation, items: Sequence[Item]) -> None:
        """Release a call's concurrency slots, except those released at its first output."""
        held_s = self._loop.time() - reservation.since_s
        held = [
            item for item in items if item.kind == "c" and not (reservation.has_output and item.ends_at_first_output)
        ]
        self._local.end_call(held)
        for item in held:
            self._pace.record(item.key, held_s)

    def _flush_soon(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        """Send all settlements since the last flush in one write."""
        self._flush_timer = None
        batch, self._settling = self._settling, []
        pipelined, self._pipelined = self._pipelined, []
        if not batch and not pipelined:
            return
        if not self._link.is_open:
            self._unreported.add_settlements(batch)
            return
        data = b"".join(
            [*pipelined, *(each.settle_command(self._lease_ms, tokens, spent) for each, tokens, spent in batch)]
        )
        try:
            future = self._link.send(data, len(pipelined) + len(batch))
        except StoreUnavailable:
            self._unreported.add_settlements(batch)
            return
        if batch:
            future.add_done_callback(lambda done: self._flushed(done, batch))

    def _flushed(self, future: asyncio.Future[Reply], batch: list[Settlement]) -> None:
        """Keep settlements for a retry if they may not have arrived. Settling twice has no effect."""
        if future.cancelled() or future.exception() is not None or isinstance(future.result(), Exception):
            self._unreported.add_settlements(batch)
            if not future.cancelled() and future.exception() is None:
                self._link.drop("a settlement was refused")

    async def _on_redis_recovered(self, link: Sender) -> None:
        """Prepare a new connection: load scripts, restore lost data, report what is unreported."""
        await self._load_scripts(link)
        known = raise_if_refused(await link.send(command("GET", script.EPOCH_KEY)))
        await self._adopt_epoch(link, self._epoch, known.decode() if isinstance(known, bytes) else "")
        for reply in await self._send_unreported(link):
            raise_if_refused(reply)
        if self._unreported:
            self._send_unreported(link)  # calls that arrived meanwhile are reported before any later command
        if self._link.lost_s is None:
            self._local.drop_shares()
        else:
            now_s = self._loop.time()
            # The interval between two tries to reconnect grows with the outage, to at most 1.5 s.
            self._local.on_redis_recovered(now_s + min(MAX_SHARES_S, 2 * (now_s - self._link.lost_s)))

    def _send_unreported(self, link: Sender) -> asyncio.Future[list[Reply]]:
        return self._unreported.send(
            link, epoch=self._epoch, lease_ms=self._lease_ms, running=self._running, now_s=self._loop.time()
        )

    async def _load_scripts(self, link: Sender) -> None:
        try:
            for text in script.SCRIPTS.values():
                raise_if_refused(await link.send(command("SCRIPT", "LOAD", text)))
        except CommandRefused as error:
            link.drop(error.code)
            raise StoreUnavailable(f"redis: {error.code}") from None

    async def _adopt_epoch(self, link: Sender, own: str, known: str) -> None:
        """Restore the state that this gateway knows to a Redis with another epoch, and adopt that epoch. `own` is this
        gateway's epoch when Redis reported `known`."""
        async with self._adopting:
            if self._epoch != own or (known and known == self._epoch):
                return
            now_s = self._loop.time()
            replies = []
            for seen in self._local.open_windows(now_s):
                left_ms = math.ceil((seen.ends_s - now_s) * 1000)
                key, sha = seen.item.key, script.SHA["restore"]
                replies.append(link.send(command("EVALSHA", sha, 1, key, seen.used, left_ms, seen.item.span_ms)))
            for reply in replies:
                raise_if_refused(await reply)
            await link.send(command("SET", script.EPOCH_KEY, uuid.uuid4().hex, "NX"))
            stored = raise_if_refused(await link.send(command("GET", script.EPOCH_KEY)))
            epoch = stored.decode() if isinstance(stored, bytes) else ""
            counted = [reservation for reservation in self._running.values() if reservation.is_counted]
            for budget in dict.fromkeys(budget for reservation in counted for budget in reservation.plan.budgets):
                with contextlib.suppress(StoreUnavailable):  # the budget is loaded before its next reservation
                    await self._seed_now(budget, link)
            replies = []
            for reservation in counted:
                replies.append(link.send(reservation.reserve_command(epoch, self._lease_ms, script.RESTORE_CALL)))
                replies += [link.send(each) for each in reservation.release_waiting_commands()]
            for reply in replies:
                raise_if_refused(await reply)
            if self._epoch:
                log.warning("quota state restored after redis lost its data", extra={"calls": len(self._running)})
            self._epoch = epoch

    async def _seed_budget(self, budget: Budget) -> None:
        """Load a budget's used amount from the database into Redis, once per budget at a time. Raises
        StoreUnavailable."""
        task = self._seeding_tasks.get(budget.key)
        if task is None:
            task = self._seeding_tasks[budget.key] = self._loop.create_task(self._seed_now(budget, self._link))
            task.add_done_callback(lambda _: self._seeding_tasks.pop(budget.key, None))
        await asyncio.shield(task)

    async def _seed_now(self, budget: Budget, link: Sender) -> None:
        if self._budgets is None:
            raise StoreUnavailable("budgets are not configured")
        used, ttl_ms = await self._budgets.used(budget), max(1, round(budget.ttl_s * 1000))
        raise_if_refused(await link.send(command("EVALSHA", script.SHA["seed"], 1, budget.key, used, ttl_ms)))
