"""Pseudonyms of an account for the engine: a cache namespace, and a number for fairness. Pure functions.

Both are keyed with a secret: they reveal nothing about the account and cannot be computed from an account id.
"""

from __future__ import annotations

import hmac

FAIRNESS_BITS = 63


def cache_namespace(secret: bytes, account_id: str, sub_namespace: str = "") -> bytes:
    """Return the 32-byte root key of an account's prefix cache, or of a part of it. Never taken from a request."""
    return _keyed(secret, "cache namespace", account_id, sub_namespace)


def fresh_namespace(namespace: bytes, request_id: str) -> bytes:
    """Return a 32-byte root key for one request, so that no other request can use its cached blocks."""
    return hmac.digest(namespace, b"one request " + request_id.encode(), "sha256")


def fairness_id(secret: bytes, account_id: str) -> int:
    """Return the number below 2**63 that identifies an account to the fair scheduler."""
    return int.from_bytes(_keyed(secret, "fairness", account_id)[:8], "big") >> (64 - FAIRNESS_BITS)


def _keyed(secret: bytes, purpose: str, *parts: str) -> bytes:
    """Return the HMAC-SHA-256 of the purpose and the parts, each length-prefixed so that no two lists collide."""
    fields = [part.encode() for part in (purpose, *parts)]
    return hmac.digest(secret, b"".join(len(field).to_bytes(4, "big") + field for field in fields), "sha256")
