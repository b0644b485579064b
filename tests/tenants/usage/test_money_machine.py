"""Reserve, settle, crash, flush and replay in any order, on a real Redis and a real ledger.

The budget is never exceeded, the counts equal the ledger after a comparison, and the ledger equals the settled calls.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from redis import Redis

from storage.database import Database, new_id_hex, uuid7
from storage.embedded_redis import EmbeddedRedis
from storage.ephemeral import Ephemeral
from tenants.quota.allowance import Allowance
from tenants.quota.quota import Quota
from tenants.quota.quota_plan import QuotaExceeded, Reservation
from tenants.usage import usage_entries as usage
from tenants.usage.usage_entries import UsageEntry
from tests.tenants.hand_clock import HandClock
from tests.tenants.quota.test_allowance import Caller
from tests.tenants.usage.made_entries import entry

LIMIT = 100
GATEWAYS = 2


class Money(RuleBasedStateMachine):
    """Calls of one free account through two gateways. The clock stands still, so no day ends."""

    clock = HandClock()
    database: Database
    allowance: Allowance
    quotas: list[Quota]
    redis: Redis
    runner: asyncio.Runner
    ops = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.caller = Caller(account_id=new_id_hex())
        self.settled = 0  # micro-neurons in the ledger
        self.open: dict[str, int] = {}  # reserved micro-neurons of open calls, by operation id
        self.unreported = 0  # settled in the ledger but not reported to Redis
        self.entries: list[UsageEntry] = []

    held = Bundle("held")

    @rule(target=held, gateway=st.integers(0, GATEWAYS - 1), cost=st.integers(1, 60))
    def reserve(self, gateway: int, cost: int):
        quota = self.quotas[gateway]
        (budget,) = self.allowance.of(self.caller)
        plan = quota.plan(self.caller.account_id, (), (budget,))
        op = f"op{next(self.ops)}"
        try:
            reservation = self._run(quota.reserve(plan, op, micro_neurons=cost))
        except QuotaExceeded:
            assert self.settled + sum(self.open.values()) + cost > LIMIT, "there was room"
            return None
        # Unreported settlements are not counted until the next comparison, so the limit may be exceeded by no more than
        # these.
        assert self.settled - self.unreported + sum(self.open.values()) + cost <= LIMIT
        self.open[op] = cost
        return gateway, reservation

    @rule(call=consumes(held), share=st.sampled_from([0.0, 0.5, 1.0]), is_told=st.booleans())
    def settle(self, call: tuple[int, Reservation] | None, share: float, is_told: bool) -> None:
        """Write the entry; then the gateway reports to Redis, or dies before."""
        if call is None:
            return
        gateway, reservation = call
        used = int(reservation.micro_neurons * share)
        self._enter(used)
        if is_told:
            self._settle(gateway, reservation, used)
        else:
            self.unreported += used
            self._lease_ends(reservation)
        del self.open[reservation.op]

    @rule(call=consumes(held))
    def crash(self, call: tuple[int, Reservation] | None) -> None:
        """Crash without a report; the lease expires."""
        if call is not None:
            self._lease_ends(call[1])
            del self.open[call[1].op]

    @rule()
    def flush(self) -> None:
        """Flush Redis; gateways restore open calls, and the used amount comes from the ledger."""
        self.redis.flushall()
        self.unreported = 0
        (budget,) = self.allowance.of(self.caller)
        for quota in self.quotas:  # both gateways notice the flush
            plan = quota.plan(self.caller.account_id, (), (budget,))
            self._settle_now(quota, self._run(quota.reserve(plan, f"op{next(self.ops)}", micro_neurons=0)))

    @rule()
    def replay(self) -> None:
        assert self._run(usage.write(self.database, self.entries)) == 0

    @rule()
    def compare(self) -> None:
        self._run(self.allowance.true_up(self.quotas[0]))
        self.unreported = 0
        counted = self._counted()
        assert not counted or counted["u"] == self.settled

    @invariant()
    def nothing_is_negative(self) -> None:
        counted = self._counted()
        assert all(value >= 0 for value in counted.values()), counted

    def teardown(self) -> None:
        """Check that the ledger equals the settled calls."""
        (budget,) = self.allowance.of(self.caller)
        assert self._run(self.allowance.used(budget)) == self.settled

    def _enter(self, used: int) -> None:
        one = entry(uuid7(), account_id=self.caller.account_id, micro_neurons=used, started_at=self.clock.now())
        self.entries.append(one)
        self._run(usage.write(self.database, [one]))
        self.settled += used

    def _settle(self, gateway: int, reservation: Reservation, used: int) -> None:
        self.quotas[gateway].settle(reservation, micro_neurons=used)
        self._behind(self.quotas[gateway])

    def _settle_now(self, quota: Quota, reservation: Reservation) -> None:
        quota.settle(reservation)
        self._behind(quota)

    def _behind(self, quota: Quota) -> None:
        """Wait until all commands sent on this connection have run."""

        async def said() -> None:
            quota._flush()
            await quota.raise_used("nobody", 1)

        self._run(said())

    def _lease_ends(self, reservation: Reservation) -> None:
        self.redis.zadd(f"quota:open:{self.caller.account_id}", {reservation.op: 1})
        for quota in self.quotas:
            quota._running.pop(reservation.op, None)

    def _counted(self) -> dict[str, int]:
        (budget,) = self.allowance.of(self.caller)
        return {name.decode(): int(value) for name, value in self.redis.hgetall(budget.key).items()}  # type: ignore[union-attr]

    def _run(self, job):
        return self.runner.run(job)


async def _nothing() -> None: ...


@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_examples", [8, pytest.param(150, marks=pytest.mark.full)])
def test_no_order_of_events_exceeds_the_budget(sqlite_url: str, redis_server: EmbeddedRedis, num_examples: int) -> None:
    with asyncio.Runner() as runner, Redis.from_url(redis_server.url) as redis:
        redis.flushall()
        database = Database.connect(sqlite_url)
        ephemeral = Ephemeral.connect(redis_server.url, timeout_s=60)
        allowance = Allowance(
            database, Money.clock, free_micro_neurons=LIMIT, micro_neurons_for=lambda amount: amount, flush=_nothing
        )

        async def start() -> list[Quota]:
            quotas = [
                Quota(redis_server.url, ephemeral, timeout_s=60, lease_s=60, budgets=allowance) for _ in range(GATEWAYS)
            ]
            for quota in quotas:
                await quota.open()
            return quotas

        Money.database, Money.allowance, Money.redis, Money.runner = database, allowance, redis, runner
        Money.quotas = runner.run(start())
        try:
            found = settings(max_examples=num_examples, stateful_step_count=15, deadline=None)
            run_state_machine_as_test(Money, settings=found)
        finally:

            async def stop() -> None:
                for quota in Money.quotas:
                    await quota.close()
                await ephemeral.close()
                await database.close()
                await asyncio.sleep(0)  # lets the transports close

            runner.run(stop())
