"""Fingerprint of a call's input, to recognize an input that crashed a model process when the input comes again.

The tenant's namespace is the hash key: equal inputs of two tenants have different fingerprints, and a fingerprint does
not reveal the input.
"""

from __future__ import annotations

import hashlib

import msgspec

from engine.protocol.tasks.registry import TaskInput

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def fingerprint_of(namespace: bytes, model: str, revision: str, task: TaskInput) -> bytes:
    """Return 16 bytes, equal for equal inputs to one model version in one namespace (at most 64 bytes of it count)."""
    keyed = hashlib.blake2b(key=namespace[:64], digest_size=16, person=b"hearth-call-1")
    keyed.update(_encoder.encode((model, revision)))
    keyed.update(_encoder.encode(task))
    return keyed.digest()
