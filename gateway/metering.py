"""Wraps the events of a call; settles its usage exactly once, also when the client leaves or the node dies.

The entry is durable before the call's last event is handed on, so no answer ends unrecorded. Counts tokens as events
pass, and believes the node's own count when it gives one. Knows prices and the ledger, not HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from prometheus_client import Histogram

from catalog.pricing import price_in_micro_neurons
from engine.protocol.events import Event, Failed, Finished, Result, Started, Token, ToolCallDelta, Usage
from gateway.call import Call
from gateway.errors import Refusal
from gateway.retry_tracker import UsefulReplies
from telemetry import metrics
from telemetry.clock import Clock
from telemetry.metrics import Tally
from tenants.usage.usage_entries import UsageEntry

LAST_WORDS_TIMEOUT_S = 2.0  # for a cancelled call's node to say what it had done


_ENDS = (Finished, Failed)  # a union would be made anew each time


class Source(Protocol):
    """Where a call's events come from."""

    node_id: str
    num_attempts: int

    async def take(self, not_before_s: float = 0.0) -> list[Event]: ...
    def cancel(self) -> None: ...
    async def last_words(self, timeout_s: float) -> list[Event]: ...
    def close(self) -> None: ...


class Ledger(Protocol):
    """Where a call's entry goes."""

    async def record(self, entry: UsageEntry) -> None: ...


class MeteredEvents:
    """The events of one call, counted; `on_output` is told of the first."""

    def __init__(
        self,
        call: Call,
        source: Source,
        ledger: Ledger,
        pop: str,
        clock: Clock,
        useful: UsefulReplies | None = None,
        on_output: Callable[[], None] | None = None,
    ) -> None:
        self._call = call
        self._source = source
        self._ledger = ledger
        self._pop = pop
        self._clock = clock
        self._useful = useful
        self._asked = None if useful is None else useful.ask(call)
        self._on_output = on_output
        self._started = Started()
        self._num_completion_tokens = 0
        self._num_bytes_out = 0
        self._num_tool_calls = 0
        self._end: Finished | Failed | None = None
        self._first_event_s: float | None = None
        self._is_settled = False
        self._is_cut_short = False
        self._why_unfinished = "client_left"
        self.micro_neurons = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and completion so far: what limits on tokens count."""
        usage = self._usage()
        return usage.prompt_tokens + usage.completion_tokens

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """The next events. The last one comes only when the usage entry is durable; raises StoreUnavailable if it
        cannot be made so."""
        try:
            events = await self._source.take(not_before_s)
        except Refusal as refusal:
            self._why_unfinished = refusal.reason.name.lower()
            raise
        self._count(events)
        if self._end is not None:
            await self._settle()
        return events

    async def close(self) -> None:
        """End the call: if it has not ended by itself, cancel it, hear what was done, and settle that. A call that
        never reached a node leaves no entry."""
        if not self._is_settled and self._source.num_attempts:
            await asyncio.shield(asyncio.ensure_future(self._cancel_and_settle()))
        self._source.close()

    async def _cancel_and_settle(self) -> None:
        self._is_cut_short = True
        self._source.cancel()
        self._count(await self._source.last_words(LAST_WORDS_TIMEOUT_S))
        await self._settle()

    def _count(self, events: list[Event]) -> None:
        if events and self._first_event_s is None:
            self._first_event_s = self._clock.monotonic_s()
            if self._on_output is not None:
                self._on_output()
        for event in events:
            if isinstance(event, Token):
                text = event.text
            elif isinstance(event, ToolCallDelta):
                text = event.arguments
                self._num_tool_calls += event.id is not None
            else:
                self._note(event)
                continue
            self._num_completion_tokens += event.num_tokens
            self._num_bytes_out += len(text) if text.isascii() else len(text.encode())

    def _note(self, event: Event) -> None:
        """What is no piece of an answer."""
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Result):
            self._num_bytes_out += len(event.value.data)
        elif isinstance(event, _ENDS):
            self._end = event

    def _usage(self) -> Usage:
        """The node's own count, or ours when it died before it could give one."""
        if self._end is not None and (isinstance(self._end, Finished) or self._end.usage != Usage()):
            return self._end.usage
        return Usage(
            prompt_tokens=self._started.prompt_tokens,
            cached_tokens=self._started.cached_tokens,
            completion_tokens=self._num_completion_tokens,
        )

    async def _settle(self) -> None:
        """Price the call, count it in the metrics and have its entry made durable; once. Raises StoreUnavailable."""
        if self._is_settled:
            return
        self._is_settled = True
        call, usage, ended_s = self._call, self._usage(), self._clock.monotonic_s()
        self.micro_neurons = price_in_micro_neurons(
            call.card.prices,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
            completion_tokens=usage.completion_tokens,
            is_batch=call.is_batch,
        )
        num_retried = await self._useful.num_retried(call, self._asked) if self._useful and call.is_retry else 0
        entry = self._entry(usage, ended_s, num_retried)
        _export(entry)
        await self._ledger.record(entry)
        if entry.is_useful and self._useful is not None:
            self._useful.add(call)

    def _entry(self, usage: Usage, ended_s: float, num_retried: int) -> UsageEntry:
        call = self._call
        return UsageEntry(
            request_id=call.request_id,
            account_id=call.principal.account_id,
            api_token_id=call.principal.api_token_id,
            model=call.card.name,
            revision=call.card.revision,
            task=call.card.task_slug,
            pop=self._pop,
            node_id=self._source.node_id,
            status=self._why_unfinished if self._is_cut_short or self._end is None else self._end.reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            started_at=call.started_at,
            ttft_ms=None if self._first_event_s is None else (self._first_event_s - call.started_s) * 1000,
            duration_ms=(ended_s - call.started_s) * 1000,
            attempts=self._source.num_attempts,
            micro_neurons=self.micro_neurons,
            is_stream=call.is_stream,
            device_us=usage.device_us,
            bytes_in=call.num_bytes_in,
            bytes_out=self._num_bytes_out,
            num_tool_calls=self._num_tool_calls,
            num_retried=num_retried,
            is_useful=self._is_useful(),
            is_batch=call.is_batch,
        )

    def _is_useful(self) -> bool:
        """Finished (which it is not when it could not be held to the format asked for), whole, and in time."""
        is_whole = isinstance(self._end, Finished) and not self._is_cut_short
        return is_whole and asyncio.get_running_loop().time() <= self._call.deadline_s


@dataclass(frozen=True)
class _Meters:
    """The metrics of one model, their labels bound once: looking those up costs more than counting."""

    seconds: Histogram
    ttft_seconds: Histogram
    prompt_tokens: Tally
    cached_tokens: Tally
    completion_tokens: Tally
    outcomes: dict[str, Tally]


@lru_cache(maxsize=4096)
def _meters_of(model: str) -> _Meters:
    return _Meters(
        metrics.CALL_SECONDS.labels(model),
        metrics.TTFT_SECONDS.labels(model),
        Tally(metrics.PROMPT_TOKENS.labels(model)),
        Tally(metrics.CACHED_TOKENS.labels(model)),
        Tally(metrics.COMPLETION_TOKENS.labels(model)),
        {},
    )


def _export(entry: UsageEntry) -> None:
    """One ended call in this process's metrics."""
    meters = _meters_of(entry.model)
    outcome = "finished" if entry.status in ("stop", "length", "tool_calls") else entry.status
    counter = meters.outcomes.get(outcome)
    if counter is None:
        counter = meters.outcomes[outcome] = Tally(metrics.CALLS.labels(entry.model, outcome))
    counter.add()
    meters.seconds.observe(entry.duration_ms / 1000)
    if entry.ttft_ms is not None and entry.is_stream:
        meters.ttft_seconds.observe(entry.ttft_ms / 1000)
    meters.prompt_tokens.add(entry.prompt_tokens)
    meters.cached_tokens.add(entry.cached_tokens)
    meters.completion_tokens.add(entry.completion_tokens)
