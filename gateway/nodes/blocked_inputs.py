"""Inputs that nodes refuse because they ended processes: not sent to any node again for BLOCK_S.

A node knows only what happened to it; here every node's refusal is remembered. Known by fingerprint, and nothing is
computed while there is none.
"""

from __future__ import annotations

from engine.protocol.fingerprint import fingerprint_of
from gateway.call import Call
from gateway.errors import Reason, Refusal
from telemetry.bounded_cache import BoundedCache
from telemetry.clock import Clock

BLOCK_S = 60.0
MAX_INPUTS = 4096


class BlockedInputs:
    """One gateway's."""

    def __init__(self, clock: Clock) -> None:
        self._fingerprints: BoundedCache[bytes, bool] = BoundedCache(MAX_INPUTS, ttl_s=BLOCK_S, now_s=clock.monotonic_s)

    def __len__(self) -> int:
        return len(self._fingerprints)

    def check(self, call: Call) -> None:
        """Raises Refusal for a call with such an input."""
        if self._fingerprints and _fingerprint(call) in self._fingerprints:
            raise Refusal(Reason.INPUT_BLOCKED)

    def add(self, call: Call) -> None:
        """A node refused it."""
        self._fingerprints.put(_fingerprint(call), True)


def _fingerprint(call: Call) -> bytes:
    return fingerprint_of(call.namespace, call.card.name, call.card.revision, call.task)
