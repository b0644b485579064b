"""What a call asks, as 16 bytes: so that a call which ended a model's process is known when it comes again.

Keyed by the tenant's namespace: equal inputs of two tenants have different fingerprints, and a fingerprint tells nobody
what was asked.
"""

from __future__ import annotations

import hashlib

import msgspec

from engine.protocol.tasks import TaskInput

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def fingerprint_of(namespace: bytes, model: str, revision: str, task: TaskInput) -> bytes:
    """Equal for equal inputs to one version of a model in one namespace (up to 64 bytes of it)."""
    keyed = hashlib.blake2b(key=namespace[:64], digest_size=16, person=b"hearth-call-1")
    keyed.update(_encoder.encode((model, revision)))
    keyed.update(_encoder.encode(task))
    return keyed.digest()
