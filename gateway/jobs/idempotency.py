"""Idempotency keys: the first request under one is answered and its answer kept; the same again is given that answer.

Kept in the database, so that it holds for all gateways and over a kill; when the database is away, a request with a key
is refused. A refused request leaves its key free. A request with a key goes on when its client leaves, since the client
means to come back for the answer. Knows answers as headers and bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from gateway.errors import Reason, Refusal
from gateway.http.exchange import Headers
from gateway.jobs.sealed_content import Sealer
from storage.columns import uuid7
from storage.database import Database
from storage.errors import StoreUnavailable
from telemetry import metrics
from telemetry.clock import Clock
from tenants.jobs import idempotency
from tenants.jobs.idempotency import Kept, Keyed, Mine, Taken

log = logging.getLogger(__name__)

MAX_KEPT_BYTES = 16 << 20
RETRY_AFTER_S = 1
EXPIRE_INTERVAL_S = 60.0

_KEPT_HEADERS = frozenset({b"content-type", b"cache-control", b"cf-ai-req-id", b"cf-ai-neurons", b"x-hearth-model"})


class Answer(Struct, frozen=True):
    """An answer that was given; without a body when that was not to be kept."""

    headers: list[tuple[bytes, bytes]]
    body: bytes | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Answer).decode


@dataclass(frozen=True)
class Asked:
    """A request under a key, as it came: `target` is all that says what the body is for. `keeps_content` is false for
    accounts of which nothing is kept."""

    account_id: str
    key: bytes
    target: tuple[bytes, ...]
    body: bytes
    keeps_content: bool = True


class Held:
    """A key that this request holds: `keep` what is answered, then `close`."""

    def __init__(self, keys: IdempotencyKeys, mine: Mine, keeps_content: bool) -> None:
        self._keys = keys
        self._mine = mine
        self._keeps_content = keeps_content
        self._is_over = False
        self.request_id = mine.request_id

    async def keep(self, headers: Headers, parts: Sequence[bytes] | None) -> None:
        """Keep an answer; without one, the key is free again. Raises Refusal when another request has taken over; if
        the database is away the answer is not kept, and goes out all the same."""
        if parts is None:
            await self.close()
            return
        self._is_over = True
        kept = [header for header in headers if header[0] in _KEPT_HEADERS]
        fits = self._keeps_content and sum(map(len, parts)) <= MAX_KEPT_BYTES
        if not await self._keys.keep(self._mine, Answer(kept, b"".join(parts) if fits else None)):
            raise Refusal(Reason.KEY_IN_USE, retry_after_s=RETRY_AFTER_S)

    async def close(self) -> None:
        """The request is over: without an answer to keep, its key is free again."""
        if not self._is_over:
            self._is_over = True
            await asyncio.shield(asyncio.ensure_future(self._keys.give_up(self._mine)))


class IdempotencyKeys:
    """Those of all accounts."""

    def __init__(self, database: Database, secret: bytes, clock: Clock, *, lease_s: float, ttl_s: float) -> None:
        self._database = database
        self._sealer = Sealer(secret, "idempotency keys")
        self._clock = clock
        self._lease_s = lease_s
        self._ttl_s = ttl_s
        self._held: dict[str, Mine] = {}  # by owner

    async def take(self, asked: Asked, request_id: str) -> Held | Answer:
        """The key for this request to hold, or the answer that was given under it, which has a body. Raises Refusal,
        and StoreUnavailable when it cannot be decided."""
        account_id, now, owner = asked.account_id, self._clock.now(), uuid7()
        keyed = Keyed(account_id, self._sealer.hash_of(account_id, asked.key.decode()), self._fingerprint(asked))
        times = {"lease_s": self._lease_s, "ttl_s": self._ttl_s}
        found = await idempotency.take(self._database, keyed, owner, request_id, now, **times)
        if isinstance(found, Mine):
            self._held[owner] = found
            return Held(self, found, asked.keeps_content)
        if isinstance(found, Taken):
            if found.is_other:
                raise Refusal(Reason.KEY_USED)
            raise Refusal(Reason.KEY_IN_USE, retry_after_s=RETRY_AFTER_S)
        answer = self._opened(account_id, found)
        if answer.body is None:
            raise Refusal(Reason.KEY_SPENT)
        metrics.REPLAYS.inc()
        return answer

    def _opened(self, account_id: str, kept: Kept) -> Answer:
        try:
            return _decode(self._sealer.open(account_id, kept.answer, 2 * MAX_KEPT_BYTES))
        except (ValueError, msgspec.MsgspecError):
            log.warning("an answer that was kept cannot be read")
            raise Refusal(Reason.KEY_SPENT) from None

    def _fingerprint(self, asked: Asked) -> str:
        digest = hashlib.sha256()
        for part in (*asked.target, asked.body):
            digest.update(len(part).to_bytes(8, "big") + part)
        return self._sealer.hash_of(asked.account_id, "a request " + digest.hexdigest())

    async def keep(self, mine: Mine, answer: Answer) -> bool:
        """Keep what was answered; false when the key is not this request's any more."""
        sealed = await asyncio.to_thread(self._sealer.seal, mine.keyed.account_id, _encode(answer))
        try:
            return await idempotency.keep(self._database, mine, sealed)
        except StoreUnavailable:
            log.warning("an answer could not be kept under its idempotency key")
            return True
        finally:
            self._held.pop(mine.owner, None)

    async def give_up(self, mine: Mine) -> None:
        """Free the key of a request that has no answer to keep."""
        self._held.pop(mine.owner, None)
        try:
            await idempotency.give_up(self._database, mine)
        except StoreUnavailable:
            log.warning("an idempotency key could not be freed; it will be when its lease runs out")

    async def run(self) -> None:
        """Renew what is held and let go of what is over, for ever."""
        loop = asyncio.get_running_loop()
        next_expiry_s = loop.time() + EXPIRE_INTERVAL_S
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                if self._held:
                    await idempotency.renew(self._database, list(self._held.values()), self._clock.now(), self._lease_s)
                if loop.time() >= next_expiry_s and not await idempotency.expire(self._database, self._clock.now()):
                    next_expiry_s = loop.time() + EXPIRE_INTERVAL_S
            except StoreUnavailable:
                log.warning("idempotency keys cannot be renewed now")
