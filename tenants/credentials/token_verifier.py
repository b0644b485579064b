"""From the text of an API token, or a user's global key, to the Principal it proves, or to why it proves none.

Decisions are remembered for a short while, under a hash of the text, and forgotten the moment a change to the token or
its account is seen: the epoch is read every second, a hint over Redis asks for it sooner, and a change that is made by
this very process is known to it before whoever asked for it has an answer. While the database is away, what was
confirmed in the last quarter of an hour still counts; what was not cannot be decided, and is not let in. A token in use
is confirmed again and again: when it last was is written down as its last use.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from storage.waiters import wait_for_event
from telemetry.bounded_cache import BoundedCache
from telemetry.clock import SYSTEM_CLOCK, Clock
from telemetry.steady_clock import SteadyClock
from tenants.credentials import credential_rows, decision_epoch
from tenants.credentials.api_token_text import ParsedSecret, keyed_hash, parse_secret
from tenants.credentials.credential_rows import Evaluation
from tenants.credentials.principal import Principal, Refused

_log = logging.getLogger(__name__)

FRESH_S = 30.0
STALE_S = 900.0
POLL_S = 1.0
NOTE_S = 10.0
_LOOKUP_TIMEOUT_S = 2.0
_MAX_TEXT_LENGTH = 512
_NO_DIGEST = bytes(32)  # unknown secrets are compared with this value, so that they take as long as wrong ones


@dataclass(frozen=True, slots=True)
class _Decision:
    """A result as read from the database at `confirmed_s` (monotonic), at `epoch`."""

    verdict: Principal | Refused
    marks: frozenset[str]  # a change of any of these makes it void
    epoch: int
    confirmed_s: float


LookUp = Callable[[], Coroutine[Any, Any, _Decision]]


class TokenVerifier:
    """Verifies for one process; `watch` must run beside it. At most `max_remembered` good decisions are kept, and as
    many refusals, apart from each other, so that a flood of invented tokens pushes out no good one."""

    def __init__(
        self,
        database: Database,
        pepper: bytes,
        clock: Clock = SYSTEM_CLOCK,
        ephemeral: Ephemeral | None = None,
        *,
        max_remembered: int = 20_000,
    ) -> None:
        self._database = database
        self._pepper = pepper
        self._clock = SteadyClock(clock)
        self._ephemeral = ephemeral
        self._good: BoundedCache[bytes, _Decision] = BoundedCache(max_remembered)
        self._refused: BoundedCache[bytes, _Decision] = BoundedCache(max_remembered)
        self._lookups: dict[bytes, asyncio.Task[_Decision]] = {}
        self._epoch = -1
        self._is_database_away = False
        self._poll_now = asyncio.Event()
        self._used: dict[str, datetime] = {}  # API token id -> when it was last confirmed, until that is written
        self._num_changes = 0  # seen; what was being read meanwhile is not remembered
        if ephemeral is not None:
            ephemeral.subscribe_local(decision_epoch.CHANNEL, self._hear)

    async def verify(self, text: str) -> Principal | Refused:
        """Return the principal of this secret. Raises StoreUnavailable if the secret cannot be verified now."""
        if len(text) > _MAX_TEXT_LENGTH:
            return Refused("malformed")
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        verdict = self._remembered(key)
        if verdict is not None:
            return verdict
        parsed = parse_secret(text)
        if isinstance(parsed, Refused):
            return parsed
        return await self._decide(key, lambda: self._look_up_token(key, parsed, text))

    async def verify_global_key(self, email: str, secret: str) -> Principal | Refused:
        """Return the principal of a user's email and global key. Raises StoreUnavailable if they cannot be verified
        now."""
        if len(email) > _MAX_TEXT_LENGTH or len(secret) > _MAX_TEXT_LENGTH:
            return Refused("malformed")
        text = f"{email.lower()}\n{secret}"
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        verdict = self._remembered(key)
        if verdict is not None:
            return verdict
        return await self._decide(key, lambda: self._look_up_user(key, email.lower(), secret))

    def _remembered(self, key: bytes) -> Principal | Refused | None:
        """Return a cached result that is fresh enough, evaluated at the current time."""
        decision = self._good.get(key) or self._refused.get(key)
        if decision is None:
            return None
        age_s = self._clock.monotonic_s() - decision.confirmed_s
        return self._as_of_now(decision.verdict) if age_s < (STALE_S if self._is_database_away else FRESH_S) else None

    async def _decide(self, key: bytes, look_up: LookUp) -> Principal | Refused:
        try:
            decision = await self._confirm(key, look_up)
        except StoreUnavailable:
            # Asked again: while we waited, a change to it may have been seen and the decision dropped.
            known = self._good.get(key) or self._refused.get(key)
            if known is None or self._clock.monotonic_s() - known.confirmed_s >= STALE_S:
                raise
            decision = known
        return self._as_of_now(decision.verdict)

    async def watch(self) -> None:
        """Run forever: see every change within about a second, and notice when the database is unavailable."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll_for_ever())
            group.create_task(self._note_uses_for_ever())
            if self._ephemeral is not None:
                group.create_task(self._listen_for_ever(self._ephemeral))

    async def poll(self) -> None:
        """Drop every cached result that a change since the last poll affects."""
        self._clock.now()  # so that a slow drift is no jump
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                epoch, changed = await decision_epoch.changed_since(self._database, self._epoch)
        except (StoreUnavailable, TimeoutError):
            if not self._is_database_away:
                _log.warning("the database is away: API tokens are judged by what was confirmed lately")
            self._is_database_away = True
            return
        if self._is_database_away:
            _log.info("the database is back")
        self._is_database_away = False
        if self._epoch < 0:  # at the first poll, earlier decisions hold if nothing has changed since
            self._keep_only(epoch)
        elif epoch < self._epoch:  # an older copy of the database took over
            self._num_changes += 1
            self._good.clear()
            self._refused.clear()
        elif changed:
            self._forget(changed)
        self._epoch = epoch

    async def note_uses(self) -> None:
        """Store when tokens were last used; deferred while the database is unavailable."""
        used, self._used = self._used, {}
        try:
            await credential_rows.note_uses(self._database, used)
        except StoreUnavailable:
            self._used = used | self._used

    def _as_of_now(self, verdict: Principal | Refused) -> Principal | Refused:
        """Apply expiry and start time. They follow the steady clock, however recently the rest was confirmed."""
        if isinstance(verdict, Refused) or (verdict.expires_at is None and verdict.not_before is None):
            return verdict
        now = self._clock.now()
        known = (verdict.api_token_id, verdict.account_id, verdict.kind, verdict.expires_at, verdict.not_before)
        if verdict.expires_at is not None and verdict.expires_at <= now:
            return Refused("expired", *known, verdict.condition)
        if verdict.not_before is not None and verdict.not_before > now:
            return Refused("not_yet", *known, verdict.condition)
        return verdict

    async def _confirm(self, key: bytes, look_up: LookUp) -> _Decision:
        """Query the database; concurrent requests for one secret share one query."""
        task = self._lookups.get(key)
        if task is None:
            task = asyncio.ensure_future(look_up())
            self._lookups[key] = task
            task.add_done_callback(lambda done: self._lookup_ended(key, done))
        return await asyncio.shield(task)

    def _lookup_ended(self, key: bytes, task: asyncio.Task[_Decision]) -> None:
        if self._lookups.get(key) is task:
            del self._lookups[key]
        if not task.cancelled():
            task.exception()  # seen, even when everyone who waited has gone

    async def _look_up_token(self, key: bytes, parsed: ParsedSecret, text: str) -> _Decision:
        async with self._reading() as connection:
            asked_s, num_changes = self._clock.monotonic_s(), self._num_changes
            row = await credential_rows.read_token(connection, parsed.lookup_id)
            judged = Evaluation(Refused("unknown"), frozenset({parsed.lookup_id}))
            if self._is_right(text, row) and row is not None:
                judged = await credential_rows.judge_token(connection, row, parsed.lookup_id)
        epoch = self._epoch if row is None else row["epoch"]
        decision = _Decision(judged.verdict, judged.marks, epoch, asked_s)
        self._remember(key, decision, num_changes)
        if isinstance(judged.verdict, Principal):
            self._used[judged.verdict.api_token_id] = self._clock.now()
        return decision

    async def _look_up_user(self, key: bytes, email: str, secret: str) -> _Decision:
        async with self._reading() as connection:
            asked_s, num_changes = self._clock.monotonic_s(), self._num_changes
            row = await credential_rows.read_user(connection, email)
            judged = Evaluation(Refused("unknown"), frozenset() if row is None else frozenset({row["user_id"]}))
            if self._is_right(secret, row) and row is not None:
                judged = await credential_rows.judge_user(connection, row)
        epoch = self._epoch if row is None else row["epoch"]
        decision = _Decision(judged.verdict, judged.marks, epoch, asked_s)
        self._remember(key, decision, num_changes)
        return decision

    @contextlib.asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S), self._database.connection() as connection:
                yield connection
        except TimeoutError:
            raise StoreUnavailable("database: no answer in time") from None

    def _is_right(self, text: str, row: RowMapping | None) -> bool:
        return hmac.compare_digest(keyed_hash(self._pepper, text), _NO_DIGEST if row is None else row["digest"])

    def _remember(self, key: bytes, decision: _Decision, num_changes: int) -> None:
        """Unless a change was seen while this was being read (`num_changes` had been before): it may be about this very
        credential."""
        if decision.epoch < self._epoch or num_changes != self._num_changes:
            return
        self._good.pop(key)
        self._refused.pop(key)
        (self._good if isinstance(decision.verdict, Principal) else self._refused).put(key, decision)

    def _keep_only(self, epoch: int) -> None:
        """Drop the results of any other epoch."""
        for table in (self._good, self._refused):
            table.remove_if(lambda _key, decision: decision.epoch != epoch)

    def _forget(self, marks: Iterable[str]) -> None:
        """Forget what rests on any of these. What is being read now may have been read before they changed: it is told
        to those who asked before, and to nobody who asks from now on."""
        self._num_changes += 1
        self._lookups.clear()
        changed = frozenset(marks)
        for table in (self._good, self._refused):
            table.remove_if(lambda _key, decision: not changed.isdisjoint(decision.marks))

    async def _poll_for_ever(self) -> None:
        while True:
            self._poll_now.clear()
            await self.poll()
            await wait_for_event(self._poll_now, POLL_S)

    async def _note_uses_for_ever(self) -> None:
        while True:
            await asyncio.sleep(NOTE_S)
            if self._used:
                await self.note_uses()

    async def _listen_for_ever(self, ephemeral: Ephemeral) -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):
                async with contextlib.aclosing(ephemeral.subscribe(decision_epoch.CHANNEL)) as messages:
                    async for message in messages:
                        self._hear(message)
            await asyncio.sleep(POLL_S)

    def _hear(self, message: bytes) -> None:
        """Handle a change notification: drop what it names, and poll at once."""
        self._forget([message.decode("ascii", "replace")])
        self._poll_now.set()
