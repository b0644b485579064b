"""Inputs that nodes refuse because they ended processes: not sent to any node again for BLOCK_S.

A node knows only what happened to it; here every node's refusal is remembered. Known by fingerprint, and nothing is
computed while there is none.
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
    """One gateway's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: OrderedDict[bytes, float] = OrderedDict()  # soonest first

    def __len__(self) -> int:
        return len(self._until_s)

    def check(self, call: Call) -> None:
        """Raises Refusal for a call with such an input."""
        now_s = self._clock.monotonic_s()
        while self._until_s and next(iter(self._until_s.values())) <= now_s:
            self._until_s.popitem(last=False)
        if self._until_s and _fingerprint(call) in self._until_s:
            raise Refusal(Reason.INPUT_BLOCKED)

    def add(self, call: Call) -> None:
        """A node refused it."""
        fingerprint = _fingerprint(call)
        self._until_s[fingerprint] = self._clock.monotonic_s() + BLOCK_S
        self._until_s.move_to_end(fingerprint)
        if len(self._until_s) > MAX_INPUTS:
            self._until_s.popitem(last=False)


def _fingerprint(call: Call) -> bytes:
    return fingerprint_of(call.namespace, call.card.name, call.card.revision, call.task)
