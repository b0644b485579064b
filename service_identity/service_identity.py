"""The service identity of this process: its private keys, and the key ring that verifies other services' tokens.

Files are checked for changes at most once a second, so rotation and revocation need no restart. If the files become
unreadable, the last keys stay in force for 15 minutes; then no token is accepted.
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

CHECK_INTERVAL_S = 1.0
MAX_UNREADABLE_S = 15 * 60.0
MAX_USED_TOKENS = 10_000
_WARN_BEFORE_EXPIRY_S = 14 * 86400
_WARN_INTERVAL_S = 86400.0

Nonces = tuple[bytes, bytes]
"""The nonces of one connection: the node's, then the gateway's."""


class ServiceIdentity:
    def __init__(self, ring: Path, keys: Path, kind: Kind, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Read the ring and the folder of private keys.

        Raises UnsafeKeyFile if a file cannot be used, or if the private keys are not those of exactly one service of
        this kind in the ring.
        """
        self._ring_path, self._keys_path, self._clock = ring, keys, SteadyClock(clock)
        self._known = read_ring(ring)
        self._private = read_private_keys(keys)
        self._file_versions = self._read_file_versions()
        self._checked_s = self._read_s = clock.monotonic_s()
        self._is_unreadable = False
        self._warned_s: float | None = None
        self._used_tokens: dict[str, int] = {}  # expiry by token id
        subjects = {key.subject for key in self._own_keys()}
        if len(subjects) != 1:
            raise UnsafeKeyFile(
                f"{keys} must hold keys of exactly one service listed in {ring} (found {len(subjects)})"
            )
        (self.subject,) = subjects
        found_kind, self.name = parse_subject(self.subject)
        if found_kind != kind:
            raise UnsafeKeyFile(f"{keys} must hold the key of a {kind} (got the key of {self.subject})")
        self._warn_of_expiry()

    @property
    def pop(self) -> str:
        """The PoP that this service's newest key is bound to, or ""."""
        keys = self._own_keys()
        return newest_key(keys).pop if keys else ""

    def sign(self, audience: str, nonces: Nonces | None = None, *, life_s: int = 60) -> str:
        """Sign a token for `audience`. Returns "", which every service rejects, if this service has no valid key."""
        self.refresh()
        now_s = self._now_s()
        usable = [key for key in self._own_keys() if key.is_usable(now_s) and key.subject == self.subject]
        if not usable:
            _log.error("this service has no valid service key", extra={"subject": self.subject})
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

    def verify_token(
        self, token: str, kinds: Collection[Kind], nonces: Nonces | None = None, *, audience: str = ""
    ) -> Service | None:
        """Return the service of one of `kinds` that signed `token` for this connection and for `audience`, by default
        this service; or None."""
        self.refresh()
        verified = self._known.verify_token(
            token, audience=audience or self.subject, kinds=kinds, now_s=self._now_s(), binding=_binding(nonces)
        )
        if isinstance(verified, Forged):
            _log.warning("service token rejected", extra={"reason": verified.reason})
            return None
        return verified

    def verify_once(self, token: str, kinds: Collection[Kind]) -> Service | None:
        """Verify a token that is not bound to a connection; each token is accepted once."""
        service = self.verify_token(token, kinds)
        if service is None:
            return None
        if len(self._used_tokens) >= MAX_USED_TOKENS:
            now_s = self._now_s()
            self._used_tokens = {jti: end_s for jti, end_s in self._used_tokens.items() if end_s > now_s}
        if service.jti in self._used_tokens or len(self._used_tokens) >= MAX_USED_TOKENS:
            _log.warning("service token rejected", extra={"reason": "used before"})
            return None
        self._used_tokens[service.jti] = service.expires_at_s + LEEWAY_S
        return service

    def is_still_valid(self, service: Service) -> bool:
        """Return True if the service's key is still valid and neither the key nor the service has been revoked since
        verification."""
        self.refresh()
        return self._known.is_still_valid(service, self._now_s())

    def refresh(self) -> None:
        """Reload changed files, checking at most once a second."""
        now_s = self._clock.monotonic_s()
        if now_s - self._checked_s < CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        self._warn_of_expiry()
        versions = self._read_file_versions()
        if versions == self._file_versions and not self._is_unreadable:
            self._read_s = now_s
            return
        try:
            self._known, self._private = read_ring(self._ring_path), read_private_keys(self._keys_path)
        except UnsafeKeyFile as error:
            self._on_unreadable(now_s, str(error))
            return
        self._file_versions, self._read_s, self._is_unreadable = versions, now_s, False
        _log.info("service keys reloaded", extra={"num_keys": len(self._known.ring.keys)})

    def _on_unreadable(self, now_s: float, reason: str) -> None:
        if not self._is_unreadable:
            _log.error("service keys cannot be read; the last keys stay in force", extra={"reason": reason})
        self._is_unreadable = True
        if now_s - self._read_s > MAX_UNREADABLE_S and self._known.ring.keys:
            _log.error("service keys were unreadable for too long; all tokens are rejected", extra={"reason": reason})
            self._known = KnownKeys(Ring(self._known.ring.issuer))

    def _own_keys(self) -> list[PublicKey]:
        """Return this service's keys in the ring's order."""
        return [key for key in self._known.ring.keys if key.kid in self._private]

    def _read_file_versions(self) -> list[tuple[int, int, int] | None]:
        """Return values that change whenever one of the files changes; None for a missing file."""
        versions: list[tuple[int, int, int] | None] = []
        for path in (self._ring_path, self._keys_path):
            try:
                stat = path.stat()
                versions.append((stat.st_mtime_ns, stat.st_ino, stat.st_mode))
            except OSError:
                versions.append(None)
        return versions

    def _warn_of_expiry(self) -> None:
        now_s = self._clock.monotonic_s()
        left_s = max((key.not_after for key in self._own_keys() if not key.revoked_at), default=0) - self._now_s()
        is_due = self._warned_s is None or now_s - self._warned_s >= _WARN_INTERVAL_S
        if left_s < _WARN_BEFORE_EXPIRY_S and is_due:
            self._warned_s = now_s
            _log.warning("service key expires soon", extra={"subject": self.subject, "days": round(left_s / 86400, 1)})

    def _now_s(self) -> float:
        return self._clock.now().timestamp()


def _binding(nonces: Nonces | None) -> str:
    """Return the claim that binds a token to one connection: a hash of both nonces."""
    return "" if nonces is None else hashlib.sha256(b"hearth-wire-token-1|%b|%b" % nonces).hexdigest()
