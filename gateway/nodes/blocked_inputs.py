"""Inputs that nodes refuse because they crash model processes: not sent to any node for BLOCK_S seconds.

A node knows only its own crashes; this gateway remembers the refusals of all nodes, by fingerprint. No fingerprint is
computed while nothing is blocked.
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
    """The blocked inputs that this gateway knows."""

    def __init__(self, clock: Clock) -> None:
        self._fingerprints: BoundedCache[bytes, bool] = BoundedCache(MAX_INPUTS, ttl_s=BLOCK_S, now_s=clock.monotonic_s)

    def __len__(self) -> int:
        return len(self._fingerprints)

    def check(self, call: Call) -> None:
        """Raise Refusal if the call's input is blocked."""
        if self._fingerprints and _fingerprint(call) in self._fingerprints:
            raise Refusal(Reason.INPUT_BLOCKED)

    def add(self, call: Call) -> None:
        """Block the input of this call."""
        self._fingerprints.put(_fingerprint(call), True)


def _fingerprint(call: Call) -> bytes:
    return fingerprint_of(call.namespace, call.card.name, call.card.revision, call.task)
