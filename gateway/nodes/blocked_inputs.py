"""Inputs that nodes refuse because they crash model processes: not sent to any node for BLOCK_S seconds.

A node knows only its own crashes; this gateway remembers the refusals of all nodes, by fingerprint. No fingerprint is
computed while nothing is blocked.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.protocol.fingerprint import fingerprint_of
from gateway.call import Call
from gateway.errors import Reason, Refusal
from telemetry.clock import Clock

BLOCK_S = 60.0
MAX_INPUTS = 4096


class BlockedInputs:
    """The blocked inputs that this gateway knows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: OrderedDict[bytes, float] = OrderedDict()  # by fingerprint, the earliest expiry first

    def __len__(self) -> int:
        return len(self._until_s)

    def check(self, call: Call) -> None:
        """Raise Refusal if the call's input is blocked."""
        now_s = self._clock.monotonic_s()
        while self._until_s and next(iter(self._until_s.values())) <= now_s:
            self._until_s.popitem(last=False)
        if self._until_s and _fingerprint(call) in self._until_s:
            raise Refusal(Reason.INPUT_BLOCKED)

    def add(self, call: Call) -> None:
        """Block the input of this call."""
        fingerprint = _fingerprint(call)
        self._until_s[fingerprint] = self._clock.monotonic_s() + BLOCK_S
        self._until_s.move_to_end(fingerprint)
        if len(self._until_s) > MAX_INPUTS:
            self._until_s.popitem(last=False)


def _fingerprint(call: Call) -> bytes:
    return fingerprint_of(call.namespace, call.card.name, call.card.revision, call.task)
