"""Idempotency keys: store the response to the first request with a key, and return it to identical later requests.

Keys are stored in the database, so they hold for all gateways and survive crashes; while the database is unavailable,
requests with a key are refused. A refused request releases its key. A request with a key continues when its client
disconnects, because the client intends to retry for the response. Responses are headers and bytes here.
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
from tenants.jobs.idempotency import Claimed, Completed, InUse, Keyed

log = logging.getLogger(__name__)

MAX_STORED_BYTES = 16 << 20
RETRY_AFTER_S = 1
EXPIRE_INTERVAL_S = 60.0

_STORED_HEADERS = frozenset({b"content-type", b"cache-control", b"cf-ai-req-id", b"cf-ai-neurons", b"x-hearth-model"})


class StoredResponse(Struct, frozen=True):
    """A response that was sent; `body` is None if its content must not be stored."""

    headers: list[tuple[bytes, bytes]]
    body: bytes | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredResponse).decode


@dataclass(frozen=True)
class KeyedRequest:
    """A request with a key. `target` is path, query and model: everything that determines the meaning of `body`."""

    account_id: str
    key: bytes
    target: tuple[bytes, ...]
    body: bytes
    may_store_content: bool = True


class Claim:
    """A key that this request has claimed: `store` the response, then `close`."""

    def __init__(self, keys: IdempotencyKeys, claimed: Claimed, may_store_content: bool) -> None:
        self._keys = keys
        self._claimed = claimed
        self._may_store_content = may_store_content
        self._is_over = False
        self.request_id = claimed.request_id

    async def store(self, headers: Headers, parts: Sequence[bytes] | None) -> None:
        """Store a response; with `parts` None the key is released instead. Raises Refusal if another request has taken
        the key over. If the database is unavailable, the response is not stored, but still sent."""
        if parts is None:
            await self.close()
            return
        self._is_over = True
        stored = [header for header in headers if header[0] in _STORED_HEADERS]
        fits = self._may_store_content and sum(map(len, parts)) <= MAX_STORED_BYTES
        if not await self._keys.store(self._claimed, StoredResponse(stored, b"".join(parts) if fits else None)):
            raise Refusal(Reason.KEY_IN_USE, retry_after_s=RETRY_AFTER_S)

    async def close(self) -> None:
        """End the claim; without a stored response the key is released."""
        if not self._is_over:
            self._is_over = True
            await asyncio.shield(asyncio.ensure_future(self._keys.release(self._claimed)))


class IdempotencyKeys:
    """The idempotency keys of all accounts."""

    def __init__(self, database: Database, secret: bytes, clock: Clock, *, lease_s: float, ttl_s: float) -> None:
        self._database = database
        self._sealer = Sealer(secret, "idempotency keys")
        self._clock = clock
        self._lease_s = lease_s
        self._ttl_s = ttl_s
        self._claims: dict[str, Claimed] = {}  # by owner

    async def claim(self, request: KeyedRequest, request_id: str) -> Claim | StoredResponse:
        """Claim the key for this request, or return the stored response, which has a body. Raises Refusal,
        StoreUnavailable."""
        account_id, now, owner = request.account_id, self._clock.now(), uuid7()
        keyed = Keyed(account_id, self._sealer.hash_of(account_id, request.key.decode()), self._fingerprint(request))
        times = {"lease_s": self._lease_s, "ttl_s": self._ttl_s}
        found = await idempotency.take(self._database, keyed, owner, request_id, now, **times)
        if isinstance(found, Claimed):
            self._claims[owner] = found
            return Claim(self, found, request.may_store_content)
        if isinstance(found, InUse):
            if found.is_other:
                raise Refusal(Reason.KEY_USED)
            raise Refusal(Reason.KEY_IN_USE, retry_after_s=RETRY_AFTER_S)
        response = self._decrypt(account_id, found)
        if response.body is None:
            raise Refusal(Reason.KEY_SPENT)
        metrics.REPLAYS.inc()
        return response

    def _decrypt(self, account_id: str, completed: Completed) -> StoredResponse:
        try:
            return _decode(self._sealer.open(account_id, completed.response, 2 * MAX_STORED_BYTES))
        except (ValueError, msgspec.MsgspecError):
            log.warning("stored response is unreadable")
            raise Refusal(Reason.KEY_SPENT) from None

    def _fingerprint(self, request: KeyedRequest) -> str:
        digest = hashlib.sha256()
        for part in (*request.target, request.body):
            digest.update(len(part).to_bytes(8, "big") + part)
        return self._sealer.hash_of(request.account_id, "a request " + digest.hexdigest())

    async def store(self, claimed: Claimed, response: StoredResponse) -> bool:
        """Store a response; return False if another request has taken the key over."""
        sealed = await asyncio.to_thread(self._sealer.seal, claimed.keyed.account_id, _encode(response))
        try:
            return await idempotency.store(self._database, claimed, sealed)
        except StoreUnavailable:
            log.warning("response was not stored under its idempotency key: the database is unavailable")
            return True
        finally:
            self._claims.pop(claimed.owner, None)

    async def release(self, claimed: Claimed) -> None:
        """Release the key of a request without a stored response."""
        self._claims.pop(claimed.owner, None)
        try:
            await idempotency.give_up(self._database, claimed)
        except StoreUnavailable:
            log.warning("idempotency key was not released; it expires with its lease")

    async def run(self) -> None:
        """Renew the claims of this gateway and delete expired keys, until cancelled."""
        loop = asyncio.get_running_loop()
        next_expiry_s = loop.time() + EXPIRE_INTERVAL_S
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                if self._claims:
                    await idempotency.renew(
                        self._database, list(self._claims.values()), self._clock.now(), self._lease_s
                    )
                if loop.time() >= next_expiry_s and not await idempotency.expire(self._database, self._clock.now()):
                    next_expiry_s = loop.time() + EXPIRE_INTERVAL_S
            except StoreUnavailable:
                log.warning("idempotency keys were not renewed: the database is unavailable")
