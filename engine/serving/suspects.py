"""Calls that were in a model's process when it died: a second time they run apart, and after that they do not run.

Nobody can tell which call of a batch ended the process, so at first all of them are suspects. One that is sent again,
here or by a gateway that tried elsewhere, waits until no other suspect is in the model's process, and is cleared once
it has come further than it had when the process died. A process that dies with it all the same has MAX_DEATHS deaths
in which the same call was present and no other suspect: that input is refused, for a minute, and twice as long each
time it ends a process after that.

Inputs are known by their fingerprints. Everything is bounded and forgotten in time; with no recent death nothing is
computed. Knows no sockets and no processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass

from engine.protocol.events import Failed, Usage
from engine.protocol.fingerprint import fingerprint_of
from engine.protocol.wire import Execute
from telemetry import metrics
from telemetry.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

MAX_DEATHS = 2
SUSPICION_S = 300.0  # a suspect that does not come again is forgotten
FIRST_BLOCK_S = 60.0
MAX_BLOCK_S = 3600.0
MAX_SUSPECTS = 4096

_BLOCKED = "the model's process ended each time it was given this input; it is refused for now"


@dataclass
class _Record:
    """One fingerprint: the deaths it was in, here or elsewhere, and how far it had come in the latest."""

    num_deaths: int = 0
    num_deaths_here: int = 0
    num_tokens: int = 0
    until_s: float = 0.0  # when it is forgotten
    blocked_until_s: float = 0.0
    death: object = None  # the latest one here: many calls with one fingerprint die one death


class Suspicion:
    """One call's part in this: where it stands, and its turn. Made by `Suspects.look_at`."""

    def __init__(self, suspects: Suspects, execute: Execute, fingerprint: bytes, record: _Record | None) -> None:
        self._suspects = suspects
        self._key = (execute.model, execute.revision)
        self._fingerprint = fingerprint
        self._num_deaths = max(execute.num_deaths, record.num_deaths if record else 0)
        self._num_tokens_then = max(execute.died_after, record.num_tokens if record else 0)
        self._num_tokens = 0
        self._has_turn = False

    async def wait_for_turn(self) -> Failed | None:
        """Return when no other suspect of this model runs; its end if it has meanwhile come to be refused. `leave` must
        follow, also after a cancellation."""
        await self._suspects.turns.take(self._key)
        self._has_turn = True
        return self._suspects.refusal_of(self._key[0], self._fingerprint)

    def count(self, num_tokens: int) -> None:
        """It went on by so many tokens."""
        self._num_tokens += num_tokens
        if self._num_deaths and self._num_tokens > self._num_tokens_then:
            self._num_deaths = 0
            self._suspects.clear(self._fingerprint)
            self.leave()

    def leave(self) -> None:
        """It is over, or suspected no more."""
        if self._has_turn:
            self._has_turn = False
            self._suspects.turns.give(self._key)

    @property
    def num_deaths(self) -> int:
        """Those it is suspected of, before this run."""
        return self._num_deaths


class Suspects:
    """The suspects of one node."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.turns = Turns()
        self._clock = clock
        self._records: OrderedDict[bytes, _Record] = OrderedDict()  # the longest untouched first

    def __len__(self) -> int:
        return len(self._records)

    def look_at(self, execute: Execute) -> Suspicion | Failed | None:
        """None for a call with nothing against it; its end for one that is refused."""
        if not self._records and not execute.num_deaths:
            return None
        now_s = self._clock.monotonic_s()
        self._forget_old(now_s)
        fingerprint = _fingerprint(execute)
        refusal = self.refusal_of(execute.model, fingerprint)
        if refusal is not None:
            return refusal
        record = self._records.get(fingerprint)
        if record is not None and record.until_s <= now_s:
            record = None
        return Suspicion(self, execute, fingerprint, record) if record or execute.num_deaths else None

    def refusal_of(self, model: str, fingerprint: bytes) -> Failed | None:
        """The end of a call with that fingerprint, if it is refused now."""
        record = self._records.get(fingerprint)
        if record is None or record.blocked_until_s <= self._clock.monotonic_s():
            return None
        metrics.CALLS_BLOCKED.labels(model).inc()
        return Failed("internal", _BLOCKED, num_deaths=record.num_deaths)

    def blame(self, execute: Execute, num_deaths_before: int, usage: Usage, death: object) -> tuple[Failed, int]:
        """The model's process died with this call in it: what the caller is told, and how many deaths of processes here
        are thereby explained. `death` is equal for all calls that died together."""
        now_s = self._clock.monotonic_s()
        fingerprint = _fingerprint(execute)
        record = self._records.setdefault(fingerprint, _Record())
        self._records.move_to_end(fingerprint)
        if record.death != death:
            record.death = death
            record.num_deaths = max(num_deaths_before, record.num_deaths if num_deaths_before else 0) + 1
            record.num_deaths_here += 1
        record.num_tokens = usage.completion_tokens
        record.until_s = now_s + SUSPICION_S
        if record.num_deaths < MAX_DEATHS:
            message = "the process that ran the model ended"
            self._forget_old(now_s)
            return Failed("internal", message, is_retryable=True, usage=usage, num_deaths=record.num_deaths), 0
        block_s = min(MAX_BLOCK_S, FIRST_BLOCK_S * 2.0 ** (record.num_deaths - MAX_DEATHS))
        record.blocked_until_s = now_s + block_s
        record.until_s = now_s + SUSPICION_S + 2 * block_s
        self._forget_old(now_s)
        metrics.CALLS_BLOCKED.labels(execute.model).inc()
        facts = {"model": execute.model, "request_id": execute.request_id, "fingerprint": fingerprint.hex()}
        logger.error("a call is refused from now on", extra=facts | {"num_deaths": record.num_deaths, "for_s": block_s})
        return Failed("internal", _BLOCKED, usage=usage, num_deaths=record.num_deaths), record.num_deaths_here

    def clear(self, fingerprint: bytes) -> None:
        """It ran as far as it had, and further: it was not the one. One that was refused before stays on record."""
        record = self._records.get(fingerprint)
        if record is not None and record.num_deaths < MAX_DEATHS:
            del self._records[fingerprint]

    def _forget_old(self, now_s: float) -> None:
        while self._records:
            record = next(iter(self._records.values()))
            if record.until_s > now_s and len(self._records) <= MAX_SUSPECTS:
                return
            self._records.popitem(last=False)


class Turns:
    """One at a time for each key, in order of asking."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # a key is there while somebody has its turn

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self, key: Hashable) -> None:
        if key not in self._waiting:
            self._waiting[key] = deque()
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[key].append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(key)
            else:
                self._waiting[key].remove(future)
            raise

    def give(self, key: Hashable) -> None:
        """Whoever had the turn has it no more."""
        waiting = self._waiting[key]
        while waiting:
            future = waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        del self._waiting[key]


def _fingerprint(execute: Execute) -> bytes:
    return fingerprint_of(execute.namespace, execute.model, execute.revision, execute.task)
