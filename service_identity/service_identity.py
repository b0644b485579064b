"""The service identity of this process: its private keys and the key ring by which it verifies other services.

Files are checked for changes at most once a second, so rotation and revocation need no restart. If the ring becomes
unreadable, the last one stays in force for 15 minutes; then no token is accepted.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from pathlib import Path

from service_identity.key_ring import UnsafeKeyFile, newest_key, read_private_keys, read_ring
from service_identity.service_tokens import (
    LEEWAY_S,
    Forged,
    Kind,
    KnownKeys,
    PublicKey,
    Ring,
    Service,
    parse_subject,
    sign,
)
from telemetry.clock import SYSTEM_CLOCK, Clock
from telemetry.steady_clock import SteadyClock

_log = logging.getLogger(__name__)

LOOK_S = 1.0
KEEP_S = 15 * 60.0
MAX_SPENT = 10_000
_WARN_BEFORE_S = 14 * 86400
_WARN_EACH_S = 86400.0

Nonces = tuple[bytes, bytes]
"""The nonces of one connection: the node's, then the gateway's."""


class ServiceIdentity:
    def __init__(self, ring: Path, keys: Path, kind: Kind, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises UnsafeKeyFile for files that cannot be used, or private keys that are
        not those of one service of this kind that is in the ring."""
        self._ring_path, self._keys_path, self._clock = ring, keys, SteadyClock(clock)
        self._known = read_ring(ring)
        self._private = read_private_keys(keys)
        self._stamps = self._look()
        self._looked_s = self._read_s = clock.monotonic_s()
        self._is_unreadable = False
        self._warned_s: float | None = None
        self._spent: dict[str, int] = {}
        own = {key.subject for key in self._own_keys()}
        if len(own) != 1:
            raise UnsafeKeyFile(f"{keys}: must hold keys of exactly one service listed in {ring} (found {len(own)})")
        (self.subject,) = own
        found_kind, self.name = parse_subject(self.subject)
        if found_kind != kind:
            raise UnsafeKeyFile(f"{keys}: holds the key of {self.subject}, where one of a {kind} is needed")
        self._warn_of_the_end()

    @property
    def place(self) -> str:
        """The PoP that this service's newest key is bound to, or ""."""
        keys = self._own_keys()
        return newest_key(keys).place if keys else ""

    def sign(self, audience: str, nonces: Nonces | None = None, *, life_s: int = 60) -> str:
        """Sign a token for `audience`. Returns "", which nobody accepts, if this service has no valid key."""
        self.refresh()
        now_s = self._now_s()
        usable = [key for key in self._own_keys() if key.is_usable(now_s) and key.subject == self.subject]
        if not usable:
            _log.error("none of our service keys is good", extra={"subject": self.subject})
            return ""
        key = newest_key([key for key in usable if key.not_before <= now_s] or usable)
        return sign(
            self._private[key.kid],
            key,
            issuer=self._known.ring.issuer,
            audience=audience,
            now_s=now_s,
            life_s=life_s,
            binding=_binding(nonces),
        )

    def verify_token(self, token: str, kinds: Collection[Kind], nonces: Nonces | None = None) -> Service | None:
        """Return the service of one of `kinds` that signed `token` for this service and connection, or None."""
        self.refresh()
        found = self._known.verify_token(
            token, audience=self.subject, kinds=kinds, now_s=self._now_s(), binding=_binding(nonces)
        )
        if isinstance(found, Forged):
            _log.warning("a service token was refused", extra={"why": found.reason})
            return None
        return found

    def verify_once(self, token: str, kinds: Collection[Kind]) -> Service | None:
        """Verify a token that is not bound to a connection; each token is accepted once."""
        found = self.verify_token(token, kinds)
        if found is None:
            return None
        if len(self._spent) >= MAX_SPENT:
            now_s = self._now_s()
            self._spent = {jti: end_s for jti, end_s in self._spent.items() if end_s > now_s}
        if found.jti in self._spent or len(self._spent) >= MAX_SPENT:
            _log.warning("a service token was refused", extra={"why": "spent"})
            return None
        self._spent[found.jti] = found.expires_at_s + LEEWAY_S
        return found

    def is_still_valid(self, service: Service) -> bool:
        """Return True if the service's key is still valid and neither the key nor the service has been revoked since
        verification."""
        self.refresh()
        return self._known.is_still_valid(service, self._now_s())

    def refresh(self) -> None:
        """Reload changed files, checking at most once a second."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        self._warn_of_the_end()
        stamps = self._look()
        if stamps == self._stamps and not self._is_unreadable:
            self._read_s = now_s
            return
        try:
            self._known, self._private = read_ring(self._ring_path), read_private_keys(self._keys_path)
        except UnsafeKeyFile as error:
            self._go_on_without(now_s, str(error))
            return
        self._stamps, self._read_s, self._is_unreadable = stamps, now_s, False
        _log.info("service keys were read again", extra={"num_keys": len(self._known.ring.keys)})

    def _go_on_without(self, now_s: float, why: str) -> None:
        if not self._is_unreadable:
            _log.error("service keys cannot be read; the last ones stay for a while", extra={"why": why})
        self._is_unreadable = True
        if now_s - self._read_s > KEEP_S and self._known.ring.keys:
            _log.error("service keys could not be read for too long: nobody is believed", extra={"why": why})
            self._known = KnownKeys(Ring(self._known.ring.issuer))

    def _own_keys(self) -> list[PublicKey]:
        """Return this service's keys in the ring's order."""
        return [key for key in self._known.ring.keys if key.kid in self._private]

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Return values that change whenever one of the files changes; None for a missing file."""
        found: list[tuple[int, int, int] | None] = []
        for path in (self._ring_path, self._keys_path):
            try:
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_ino, stat.st_mode))
            except OSError:
                found.append(None)
        return found

    def _warn_of_the_end(self) -> None:
        now_s = self._clock.monotonic_s()
        left_s = max((key.not_after for key in self._own_keys() if not key.revoked_at), default=0) - self._now_s()
        is_due = self._warned_s is None or now_s - self._warned_s >= _WARN_EACH_S
        if left_s < _WARN_BEFORE_S and is_due:
            self._warned_s = now_s
            _log.warning("our service key runs out", extra={"subject": self.subject, "days": round(left_s / 86400, 1)})

    def _now_s(self) -> float:
        return self._clock.now().timestamp()


def _binding(nonces: Nonces | None) -> str:
    """Return the claim that binds a token to one connection: a hash of both nonces."""
    return "" if nonces is None else hashlib.sha256(b"hearth-wire-token-1|%b|%b" % nonces).hexdigest()
