"""From an account to what the engine may know of it: a cache namespace, and a number for fairness. Pure.

Both are keyed: whoever sees them, or guesses an account id, learns nothing and can make neither.
"""

from __future__ import annotations

import hmac

FAIRNESS_BITS = 63


def cache_namespace(secret: bytes, account_id: str, sub_namespace: str = "") -> bytes:
    """32 bytes: the root of an account's prefix cache, or of one part of it. Never taken from a request's body."""
    return _keyed(secret, "cache namespace", account_id, sub_namespace)


def fresh_namespace(namespace: bytes, request_id: str) -> bytes:
    """32 bytes for one request alone, within an account's: nothing that it leaves is ever found again."""
    return hmac.digest(namespace, b"one request " + request_id.encode(), "sha256")


def fairness_id(secret: bytes, account_id: str) -> int:
    """A number below 2**63 under which the scheduler counts what an account was served."""
    return int.from_bytes(_keyed(secret, "fairness", account_id)[:8], "big") >> (64 - FAIRNESS_BITS)


def _keyed(secret: bytes, purpose: str, *parts: str) -> bytes:
    """HMAC-SHA-256 over the purpose and the parts, each with its length before it, so that no two lists collide."""
    fields = [part.encode() for part in (purpose, *parts)]
    return hmac.digest(secret, b"".join(len(field).to_bytes(4, "big") + field for field in fields), "sha256")
