"""tenants/jobs/idempotency.py as a state machine of claims, responses, rejections, crashes and late owners in any
order.

A key has at most one response until it expires, and every later request gets this response. Two live owners never work
on one key at the same time, and an owner that takes over uses the first request id.
"""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule, run_state_machine_as_test

from storage.database import Database, new_id_hex
from tenants.jobs import idempotency
from tenants.jobs.idempotency import Claimed, Completed, InUse, Keyed

LEASE_S, TTL_S = 10.0, 100.0
OWNERS = itertools.count()


class Keys(RuleBasedStateMachine):
    """Requests with two keys of one account."""

    database: Database
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.account_id = new_id_hex()
        self.now = datetime(2026, 11, 22, tzinfo=UTC)
        self.believed: dict[str, tuple[Claimed, datetime]] = {}  # key -> the live owner and the end of its lease
        self.lost_id: dict[str, str] = {}  # key -> the request id of an owner that may have died
        self.responses: dict[str, bytes] = {}
        self.fingerprint: dict[str, str] = {}
        self.expires_at: dict[str, datetime] = {}

    held = Bundle("held")
    keys = st.sampled_from(["a" * 64, "b" * 64])

    @rule(target=held, key=keys, body=st.sampled_from(["1" * 64, "1" * 64, "2" * 64]))
    def ask(self, key: str, body: str):
        if key in self.expires_at and self.expires_at[key] <= self.now:
            self._forget(key)
        owner = f"owner-{next(OWNERS)}"
        keyed = Keyed(self.account_id, key, body)
        times = {"lease_s": LEASE_S, "ttl_s": TTL_S}
        found = self._run(idempotency.take(self.database, keyed, owner, f"id-{owner}", self.now, **times))
        is_known = key in self.fingerprint
        if isinstance(found, Completed):
            assert found.response == self.responses[key]
            assert body == self.fingerprint[key]
        elif isinstance(found, InUse):
            assert is_known
            assert found.is_other == (body != self.fingerprint[key])
            assert found.is_other or self.believed[key][1] > self.now
        else:
            assert key not in self.responses
            assert not is_known or (body == self.fingerprint[key] and self.believed[key][1] <= self.now)
            assert found.request_id == self.lost_id.get(key, f"id-{owner}")
            self.fingerprint[key] = body
            self.lost_id[key] = found.request_id
            self.expires_at[key] = self.now + timedelta(seconds=TTL_S)
            self.believed[key] = (found, self.now + timedelta(seconds=LEASE_S))
            return found
        return None

    @rule(claimed=consumes(held), is_repeated=st.booleans())
    def answered(self, claimed: Claimed | None, is_repeated: bool) -> None:
        if claimed is None:
            return
        response = f"by {claimed.owner}".encode()
        was_stored = self._run(idempotency.store(self.database, claimed, response))
        assert was_stored == self._is_owner(claimed)
        if was_stored:
            self.responses[claimed.keyed.key_hash] = response
        if is_repeated:  # a retry after the database's reply was lost
            assert not self._run(idempotency.store(self.database, claimed, b"again"))

    @rule(claimed=consumes(held))
    def refused(self, claimed: Claimed | None) -> None:
        if claimed is not None:
            self._run(idempotency.give_up(self.database, claimed))
            if self._is_owner(claimed):
                self._forget(claimed.keyed.key_hash)

    @rule(claimed=consumes(held))
    def dies(self, claimed: Claimed | None) -> None:
        """Let an owner die."""

    @rule(claimed=held)
    def renews(self, claimed: Claimed | None) -> None:
        if claimed is not None:
            self._run(idempotency.renew(self.database, [claimed], self.now, LEASE_S))
            if self._is_owner(claimed):
                self.believed[claimed.keyed.key_hash] = (claimed, self.now + timedelta(seconds=LEASE_S))

    @rule(seconds=st.sampled_from([1.0, LEASE_S, TTL_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def sweeps(self) -> None:
        self._run(idempotency.expire(self.database, self.now))
        for key in [key for key, at in self.expires_at.items() if at <= self.now]:
            self._forget(key)

    def _is_owner(self, claimed: Claimed) -> bool:
        key = claimed.keyed.key_hash
        return key in self.believed and self.believed[key][0] == claimed and key not in self.responses

    def _forget(self, key: str) -> None:
        for table in (self.believed, self.lost_id, self.responses, self.fingerprint, self.expires_at):
            table.pop(key, None)

    def _run(self, job):
        return self.runner.run(job)


@pytest.mark.parametrize("num_examples", [20, pytest.param(400, marks=pytest.mark.full)])
def test_no_order_of_events_gives_a_key_two_responses(sqlite_url: str, num_examples: int):
    with asyncio.Runner() as runner:
        database = Database.connect(sqlite_url)
        Keys.database, Keys.runner = database, runner
        try:
            found = settings(max_examples=num_examples, stateful_step_count=20, deadline=None)
            run_state_machine_as_test(Keys, settings=found)
        finally:
            runner.run(database.close())


async def test_one_of_many_concurrent_requests_gets_the_lease(database: Database):
    keyed = Keyed(new_id_hex(), "a" * 64, "f" * 64)
    now = datetime.now(UTC)
    found = await asyncio.gather(
        *(
            idempotency.take(database, keyed, f"owner-{n}", f"id-{n}", now, lease_s=LEASE_S, ttl_s=TTL_S)
            for n in range(8)
        )
    )
    assert [type(one) for one in found].count(Claimed) == 1
    assert {type(one) for one in found} == {Claimed, InUse}
