"""Verify API tokens, global keys and users of sessions: return the Principal, or the reason of the rejection.

Results are cached for 30 seconds under a hash of the secret, and dropped when the token or its account changes: the
epoch is read every second, a Redis message triggers an earlier read, and changes by this process apply at once. While
the database is unavailable, results of the last 15 minutes are used; other secrets raise StoreUnavailable. The time of
a token's last confirmation is stored as its last use.
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
STORE_USES_S = 10.0
_LOOKUP_TIMEOUT_S = 2.0
_MAX_TEXT_LENGTH = 512
_NO_DIGEST = bytes(32)  # unknown secrets are compared with this value, so that they take as long as wrong ones


@dataclass(frozen=True, slots=True)
class _Result:
    """A result as read from the database at `confirmed_s` (monotonic), at `epoch`."""

    verdict: Principal | Refused
    dependency_ids: frozenset[str]  # ids whose change invalidates the result
    epoch: int
    confirmed_s: float


LookUp = Callable[[], Coroutine[Any, Any, _Result]]


class TokenVerifier:
    """The verifier of one process. `watch` must run in the background. At most `max_cached` principals are cached, and
    as many rejections, in separate caches, so that a flood of invented tokens evicts no valid token."""

    def __init__(
        self,
        database: Database,
        pepper: bytes,
        clock: Clock = SYSTEM_CLOCK,
        ephemeral: Ephemeral | None = None,
        *,
        max_cached: int = 20_000,
    ) -> None:
        self._database = database
        self._pepper = pepper
        self._clock = SteadyClock(clock)
        self._ephemeral = ephemeral
        self._accepted: BoundedCache[bytes, _Result] = BoundedCache(max_cached)
        self._rejected: BoundedCache[bytes, _Result] = BoundedCache(max_cached)
        self._lookups: dict[bytes, asyncio.Task[_Result]] = {}
        self._epoch = -1
        self._is_database_unavailable = False
        self._poll_now = asyncio.Event()
        self._used: dict[str, datetime] = {}  # last confirmation by API token id, not stored yet
        self._num_changes = 0  # changes seen; a row that was read during a change is not cached
        if ephemeral is not None:
            ephemeral.subscribe_local(decision_epoch.CHANNEL, self._on_change)

    async def verify(self, text: str) -> Principal | Refused:
        """Return the principal of this secret. Raises StoreUnavailable if the secret cannot be verified now."""
        if len(text) > _MAX_TEXT_LENGTH:
            return Refused("malformed")
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        verdict = self._find_cached(key)
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
        verdict = self._find_cached(key)
        if verdict is not None:
            return verdict
        return await self._decide(key, lambda: self._look_up_user(key, email.lower(), secret))

    async def verify_session_user(self, user_id: str, generation: int) -> Principal | Refused:
        """Return the principal of a user's browser session of this generation. Raises StoreUnavailable if the user
        cannot be read now."""
        key = f"session user {user_id} {generation}".encode()  # longer than the hashes that are the other keys
        verdict = self._find_cached(key)
        if verdict is not None:
            return verdict
        return await self._decide(key, lambda: self._look_up_session_user(key, user_id, generation))

    def _find_cached(self, key: bytes) -> Principal | Refused | None:
        """Return a cached result that is fresh enough, evaluated at the current time."""
        result = self._accepted.get(key) or self._rejected.get(key)
        if result is None:
            return None
        age_s = self._clock.monotonic_s() - result.confirmed_s
        return (
            self._as_of_now(result.verdict) if age_s < (STALE_S if self._is_database_unavailable else FRESH_S) else None
        )

    async def _decide(self, key: bytes, look_up: LookUp) -> Principal | Refused:
        try:
            result = await self._confirm(key, look_up)
        except StoreUnavailable:
            # Read the cache again: a change may have removed the result meanwhile.
            known = self._accepted.get(key) or self._rejected.get(key)
            if known is None or self._clock.monotonic_s() - known.confirmed_s >= STALE_S:
                raise
            result = known
        return self._as_of_now(result.verdict)

    async def watch(self) -> None:
        """Run forever: see every change within about a second, and notice when the database is unavailable."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll_repeatedly())
            group.create_task(self._store_uses_repeatedly())
            if self._ephemeral is not None:
                group.create_task(self._listen_repeatedly(self._ephemeral))

    async def poll(self) -> None:
        """Drop every cached result that a change since the last poll affects."""
        self._clock.now()  # keeps slow drift from counting as a jump
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                epoch, changed = await decision_epoch.changed_since(self._database, self._epoch)
        except (StoreUnavailable, TimeoutError):
            if not self._is_database_unavailable:
                _log.warning("the database is unavailable; API tokens are verified by cached results")
            self._is_database_unavailable = True
            return
        if self._is_database_unavailable:
            _log.info("the database has recovered")
        self._is_database_unavailable = False
        if self._epoch < 0:  # results from before the first poll are valid if nothing has changed since
            self._keep_only(epoch)
        elif epoch < self._epoch:  # the database was replaced by an older copy
            self._num_changes += 1
            self._accepted.clear()
            self._rejected.clear()
        elif changed:
            self._drop(changed)
        self._epoch = epoch

    async def note_uses(self) -> None:
        """Store when tokens were last used; deferred while the database is unavailable."""
        used, self._used = self._used, {}
        try:
            await credential_rows.note_uses(self._database, used)
        except StoreUnavailable:
            self._used = used | self._used

    def _as_of_now(self, verdict: Principal | Refused) -> Principal | Refused:
        """Apply expiry and start time, which follow the steady clock even for cached results."""
        if isinstance(verdict, Refused) or (verdict.expires_at is None and verdict.not_before is None):
            return verdict
        now = self._clock.now()
        known = (verdict.api_token_id, verdict.account_id, verdict.kind, verdict.expires_at, verdict.not_before)
        if verdict.expires_at is not None and verdict.expires_at <= now:
            return Refused("expired", *known, verdict.condition)
        if verdict.not_before is not None and verdict.not_before > now:
            return Refused("not_yet", *known, verdict.condition)
        return verdict

    async def _confirm(self, key: bytes, look_up: LookUp) -> _Result:
        """Query the database; concurrent requests for one secret share one query."""
        task = self._lookups.get(key)
        if task is None:
            task = asyncio.ensure_future(look_up())
            self._lookups[key] = task
            task.add_done_callback(lambda done: self._lookup_ended(key, done))
        return await asyncio.shield(task)

    def _lookup_ended(self, key: bytes, task: asyncio.Task[_Result]) -> None:
        if self._lookups.get(key) is task:
            del self._lookups[key]
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved

    async def _look_up_token(self, key: bytes, parsed: ParsedSecret, text: str) -> _Result:
        async with self._reading() as connection:
            started_s, num_changes = self._clock.monotonic_s(), self._num_changes
            row = await credential_rows.read_token(connection, parsed.lookup_id)
            evaluation = Evaluation(Refused("unknown"), frozenset({parsed.lookup_id}))
            if self._is_correct(text, row) and row is not None:
                evaluation = await credential_rows.evaluate_token(connection, row, parsed.lookup_id)
        epoch = self._epoch if row is None else row["epoch"]
        result = _Result(evaluation.verdict, evaluation.dependency_ids, epoch, started_s)
        self._cache(key, result, num_changes)
        if isinstance(evaluation.verdict, Principal):
            self._used[evaluation.verdict.api_token_id] = self._clock.now()
        return result

    async def _look_up_user(self, key: bytes, email: str, secret: str) -> _Result:
        async with self._reading() as connection:
            started_s, num_changes = self._clock.monotonic_s(), self._num_changes
            row = await credential_rows.read_user(connection, email)
            evaluation = Evaluation(Refused("unknown"), frozenset() if row is None else frozenset({row["user_id"]}))
            if self._is_correct(secret, row) and row is not None:
                evaluation = await credential_rows.evaluate_user(connection, row)
        epoch = self._epoch if row is None else row["epoch"]
        result = _Result(evaluation.verdict, evaluation.dependency_ids, epoch, started_s)
        self._cache(key, result, num_changes)
        return result

    async def _look_up_session_user(self, key: bytes, user_id: str, generation: int) -> _Result:
        async with self._reading() as connection:
            started_s, num_changes = self._clock.monotonic_s(), self._num_changes
            row = await credential_rows.read_session_user(connection, user_id)
            evaluation = Evaluation(Refused("revoked"), frozenset({user_id}))
            if row is not None and row["session_generation"] == generation:
                evaluation = await credential_rows.evaluate_session_user(connection, row)
        epoch = self._epoch if row is None else row["epoch"]
        result = _Result(evaluation.verdict, evaluation.dependency_ids, epoch, started_s)
        self._cache(key, result, num_changes)
        return result

    @contextlib.asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S), self._database.connection() as connection:
                yield connection
        except TimeoutError:
            raise StoreUnavailable("database: no response in time") from None

    def _is_correct(self, text: str, row: RowMapping | None) -> bool:
        return hmac.compare_digest(keyed_hash(self._pepper, text), _NO_DIGEST if row is None else row["digest"])

    def _cache(self, key: bytes, result: _Result, num_changes: int) -> None:
        """Cache a result, unless a change was seen while it was read: `num_changes` is the count before."""
        if result.epoch < self._epoch or num_changes != self._num_changes:
            return
        self._accepted.pop(key)
        self._rejected.pop(key)
        (self._accepted if isinstance(result.verdict, Principal) else self._rejected).put(key, result)

    def _keep_only(self, epoch: int) -> None:
        """Drop the results of any other epoch."""
        for table in (self._accepted, self._rejected):
            table.remove_if(lambda _key, result: result.epoch != epoch)

    def _drop(self, dependency_ids: Iterable[str]) -> None:
        """Drop the results that depend on any of these ids. Running queries may have read the old rows: their results
        are returned to the requests that already wait, and to no later request."""
        self._num_changes += 1
        self._lookups.clear()
        changed = frozenset(dependency_ids)
        for table in (self._accepted, self._rejected):
            table.remove_if(lambda _key, result: not changed.isdisjoint(result.dependency_ids))

    async def _poll_repeatedly(self) -> None:
        while True:
            self._poll_now.clear()
            await self.poll()
            await wait_for_event(self._poll_now, POLL_S)

    async def _store_uses_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(STORE_USES_S)
            if self._used:
                await self.note_uses()

    async def _listen_repeatedly(self, ephemeral: Ephemeral) -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):
                await self._listen(ephemeral)
            await asyncio.sleep(POLL_S)

    async def _listen(self, ephemeral: Ephemeral) -> None:
        async with contextlib.aclosing(ephemeral.subscribe(decision_epoch.CHANNEL)) as messages:
            async for message in messages:
                self._on_change(message)

    def _on_change(self, message: bytes) -> None:
        """Handle a change notification: drop what it names, and poll at once."""
        self._drop([message.decode("ascii", "replace")])
        self._poll_now.set()
