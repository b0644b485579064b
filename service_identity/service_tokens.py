"""Service tokens: short-lived Ed25519 JWTs with which gateways and nodes authenticate each other. No file access."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

Kind = Literal["gateway", "node", "operator"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_TOKEN_BYTES = 1024
MAX_LIFE_S = 600
LEEWAY_S = 30
TYPE = "hearth-service+jwt"
_ALGORITHM = "EdDSA"

_SUBJECT = re.compile(rf"({'|'.join(KINDS)})/([A-Za-z0-9._-]{{1,64}})")
_SEGMENT = re.compile(r"[A-Za-z0-9_-]+")
_ID = re.compile(r"[0-9a-f]{32}")
_HEADER_NAMES = frozenset({"alg", "kid", "typ"})
_CLAIM_NAMES = frozenset({"iss", "sub", "aud", "iat", "nbf", "exp", "jti", "bind"})
_TIMES = ("iat", "nbf", "exp")

ForgedReason = Literal[
    "form",  # too long, or not three canonical segments
    "header",  # another algorithm or type, or additional fields
    "key",  # not in the ring, not valid at this time, or revoked
    "signature",
    "claims",  # a claim is missing, repeated, unknown or has the wrong type
    "issuer",
    "subject",  # not the key's service, of a kind that is not admitted, or revoked
    "audience",  # addressed to another service
    "binding",  # signed for another connection
    "time",  # expired, not yet valid, or valid for too long
    "revoked",
]


class PublicKey(Struct, frozen=True, forbid_unknown_fields=True):
    """One key of the ring. Times are Unix times in whole seconds; `revoked_at` is 0 unless the key is revoked. `pop` is
    the PoP that the key is bound to, or ""."""

    kid: str
    subject: str
    public: str  # 64 hexadecimal digits
    not_before: int
    not_after: int
    pop: str = ""
    revoked_at: int = 0

    def is_usable(self, now_s: float) -> bool:
        return not self.revoked_at and self.not_before - LEEWAY_S <= now_s < self.not_after


class Ring(Struct, frozen=True, forbid_unknown_fields=True):
    """All public keys, and the revoked subjects and token ids with the time of revocation. A revoked token id is kept
    until the token would have expired."""

    issuer: str
    keys: tuple[PublicKey, ...] = ()
    revoked_subjects: dict[str, int] = {}
    revoked_tokens: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Service:
    """An authenticated service. `pop` is the PoP that its key is bound to, or ""."""

    subject: str
    kind: Kind
    name: str
    pop: str
    kid: str
    jti: str
    expires_at_s: int


@dataclass(frozen=True, slots=True)
class Forged:
    """Failed verification. The reason is logged locally and never sent to the peer."""

    reason: ForgedReason


def parse_subject(text: str) -> tuple[Kind, str]:
    """Return the kind and the name. Raises ValueError."""
    match = _SUBJECT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"a service must be one of {', '.join(f'{kind}/NAME' for kind in KINDS)}, where NAME is 1 to 64 of "
            f"A-Z a-z 0-9 . _ - (got {text!r})"
        )
    return cast(Kind, match[1]), match[2]


class KnownKeys:
    """A validated ring that verifies tokens. Raises ValueError for an inconsistent ring."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._keys: dict[str, tuple[PublicKey, Ed25519PublicKey]] = {}
        for key in ring.keys:
            parse_subject(key.subject)
            if not _ID.fullmatch(key.kid) or key.kid in self._keys:
                raise ValueError(f"key id {key.kid!r} is invalid or repeated")
            self._keys[key.kid] = key, Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public))

    def find(self, kid: str) -> PublicKey | None:
        found = self._keys.get(kid)
        return found and found[0]

    def verify_token(
        self, token: str, *, audience: str, kinds: Collection[Kind], now_s: float, binding: str = ""
    ) -> Service | Forged:
        """Return the service of one of `kinds` that signed `token` for `audience`, or the reason of failure."""
        segments = token.split(".") if len(token) <= MAX_TOKEN_BYTES else []
        parts = [_decoded(segment) for segment in segments]
        if len(parts) != 3 or any(part is None for part in parts):
            return Forged("form")
        header = _object(parts[0])
        if header is None or header.keys() != _HEADER_NAMES or (header["alg"], header["typ"]) != (_ALGORITHM, TYPE):
            return Forged("header")
        known = self._keys.get(header["kid"]) if isinstance(header["kid"], str) else None
        if known is None or not known[0].is_usable(now_s):
            return Forged("key")
        try:
            _SIGNATURES.decode(token, known[1], algorithms=[_ALGORITHM])
        except jwt.InvalidTokenError:
            return Forged("signature")
        claims = _object(parts[1])
        if claims is None or not _are_well_typed(claims):
            return Forged("claims")
        return self._check_claims(claims, known[0], audience, kinds, now_s, binding)

    def _check_claims(
        self,
        claims: Mapping[str, Any],
        key: PublicKey,
        audience: str,
        kinds: Collection[Kind],
        now_s: float,
        binding: str,
    ) -> Service | Forged:
        """Check the claims of a token whose signature is valid."""
        kind, name = parse_subject(key.subject)
        if claims["iss"] != self.ring.issuer:
            return Forged("issuer")
        if claims["sub"] != key.subject or kind not in kinds or key.subject in self.ring.revoked_subjects:
            return Forged("subject")
        if claims["aud"] != audience:
            return Forged("audience")
        if not secrets.compare_digest(claims.get("bind", ""), binding):
            return Forged("binding")
        if not _is_current(claims, now_s):
            return Forged("time")
        if claims["jti"] in self.ring.revoked_tokens:
            return Forged("revoked")
        return Service(key.subject, kind, name, key.pop, key.kid, claims["jti"], claims["exp"])

    def is_still_valid(self, service: Service, now_s: float) -> bool:
        """Return True if the service's key is still valid and neither the key nor the service has been revoked since
        verification. An expired token is fine here: the connection was authenticated while it was valid."""
        key = self.find(service.kid)
        return (
            key is not None
            and key.is_usable(now_s)
            and (key.subject, key.pop) == (service.subject, service.pop)
            and service.subject not in self.ring.revoked_subjects
            and service.jti not in self.ring.revoked_tokens
        )


def sign(
    private: Ed25519PrivateKey,
    key: PublicKey,
    *,
    issuer: str,
    audience: str,
    now_s: float,
    life_s: int = 60,
    binding: str = "",
) -> str:
    """Sign a token. `life_s` is at most MAX_LIFE_S."""
    assert 0 < life_s <= MAX_LIFE_S
    issued = int(now_s)
    claims: dict[str, Any] = {"iss": issuer, "sub": key.subject, "aud": audience, "jti": secrets.token_hex(16)}
    claims |= {"iat": issued, "nbf": issued, "exp": issued + life_s}
    if binding:
        claims["bind"] = binding
    return jwt.encode(claims, private, algorithm=_ALGORITHM, headers={"kid": key.kid, "typ": TYPE})


# Checks signatures only. Claims are parsed strictly here, and their times are checked with the caller's clock.
_SIGNATURES = jwt.PyJWS(algorithms=[_ALGORITHM])


def _decoded(segment: str) -> bytes | None:
    """Decode canonical base64url, or return None."""
    if not _SEGMENT.fullmatch(segment) or len(segment) % 4 == 1:
        return None
    data = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    return data if base64.urlsafe_b64encode(data).rstrip(b"=").decode() == segment else None


def _object(text: bytes | None) -> dict[str, Any] | None:
    """Parse a JSON object without duplicate names, or return None."""
    try:
        found = json.loads(text or b"", object_pairs_hook=_without_duplicates, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name")
    return found


def _reject_constant(_name: str) -> Any:
    raise ValueError("not JSON")


def _are_well_typed(claims: Mapping[str, Any]) -> bool:
    """Return True if exactly the expected claims are present with the expected types."""
    if claims.keys() | {"bind"} != _CLAIM_NAMES or not all(type(claims[name]) is int for name in _TIMES):
        return False
    texts = [value for name, value in claims.items() if name not in _TIMES]
    return all(type(text) is str and text.isascii() for text in texts) and bool(_ID.fullmatch(claims["jti"]))


def _is_current(claims: Mapping[str, Any], now_s: float) -> bool:
    issued, start, end = (claims[name] for name in _TIMES)
    if not issued <= end or not 0 < end - start <= MAX_LIFE_S or not 0 < end - issued <= MAX_LIFE_S:
        return False
    return bool(max(issued, start) <= now_s + LEEWAY_S and now_s < end + LEEWAY_S)
