"""Metering: count the events of a call, and settle its usage exactly once, also if the client disconnects or the node
dies.

The usage entry is durable before the last event is passed on, so no response ends unrecorded. A node's own token counts
take precedence over those counted here. Knows prices and the ledger, not HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from prometheus_client import Histogram

from catalog.pricing import price_in_micro_neurons
from engine.protocol.events import Data, Event, Failed, Finished, Result, Started, Token, ToolCallDelta, Usage
from gateway.call import Call
from gateway.errors import Refusal
from gateway.retry_tracker import RetryTracker
from telemetry import metrics
from telemetry.clock import Clock
from telemetry.metrics import BufferedCounter
from tenants.usage.usage_entries import UsageEntry

FINAL_EVENTS_TIMEOUT_S = 2.0  # for the node of a cancelled call to report its usage

_ENDS = (Finished, Failed)  # a `Finished | Failed` in isinstance would build a union for every event


class Source(Protocol):
    """The events of a call on its way (`gateway/dispatch.py`)."""

    node_id: str
    tried_node_ids: list[str]  # nodes that the call was sent to, in order

    async def take(self, not_before_s: float = 0.0) -> list[Event]: ...
    def cancel(self) -> None: ...
    def abandon(self) -> None: ...
    def stop(self) -> None: ...
    async def final_events(self, timeout_s: float) -> list[Event]: ...
    def close(self) -> None: ...


class Ledger(Protocol):
    """Receives usage entries."""

    async def record(self, entry: UsageEntry) -> None: ...


class MeteredEvents:
    """The events of one call, counted. `on_first_output` is called when the first event arrives,
    `on_settled` with the usage entry once it is durable."""

    def __init__(
        self,
        call: Call,
        source: Source,
        ledger: Ledger,
        pop: str,
        clock: Clock,
        retries: RetryTracker | None = None,
        on_first_output: Callable[[], None] | None = None,
        on_settled: Callable[[UsageEntry], None] = lambda _entry: None,
    ) -> None:
        self._call = call
        self._source = source
        self._ledger = ledger
        self._pop = pop
        self._clock = clock
        self._retries = retries
        self._retry_lookup = None if retries is None else retries.look_up(call)
        self._on_first_output = on_first_output
        self._on_settled = on_settled
        self.is_stream = call.is_stream
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
        """Prompt and completion tokens so far, as token limits count them."""
        usage = self._usage()
        return usage.prompt_tokens + usage.completion_tokens

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """Return the next events; the last one only after the usage entry is durable. Raises Refusal, ClientLeft, and
        StoreUnavailable if the entry cannot be made durable."""
        try:
            events = await self._source.take(not_before_s)
        except Refusal as refusal:
            self._why_unfinished = refusal.reason.name.lower()
            raise
        self._count(events)
        if self._end is not None:
            await self._settle()
        return events

    def abandon(self) -> None:
        """End the call: the client disconnected."""
        self._source.abandon()

    def stop(self) -> None:
        """End the call: the gateway shuts down."""
        self._source.stop()

    async def close(self) -> None:
        """Cancel the call if it is still running, and settle its usage. A call that never reached a node leaves no
        entry."""
        if not self._is_settled and self._source.tried_node_ids:
            await asyncio.shield(asyncio.ensure_future(self._cancel_and_settle()))
        self._source.close()

    async def _cancel_and_settle(self) -> None:
        self._is_cut_short = True
        self._source.cancel()
        self._count(await self._source.final_events(FINAL_EVENTS_TIMEOUT_S))
        await self._settle()

    def _count(self, events: list[Event]) -> None:
        if events and self._first_event_s is None:
            self._first_event_s = self._clock.monotonic_s()
            if self._on_first_output is not None:
                self._on_first_output()
        for event in events:
            if isinstance(event, Token):
                text = event.text
            elif isinstance(event, ToolCallDelta):
                text = event.arguments
                self._num_tool_calls += event.id is not None
            else:
                self._note_other(event)
                continue
            self._num_completion_tokens += event.num_tokens
            self._num_bytes_out += len(text) if text.isascii() else len(text.encode())

    def _note_other(self, event: Event) -> None:
        """Note an event that is no piece of streamed output."""
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Result | Data):
            self._num_bytes_out += len(event.data)
        elif isinstance(event, _ENDS):
            self._end = event

    def _usage(self) -> Usage:
        """Return the node's own counts, or those counted here if the node died before it reported any."""
        if self._end is not None and (isinstance(self._end, Finished) or self._end.usage != Usage()):
            return self._end.usage
        return Usage(
            prompt_tokens=self._started.prompt_tokens,
            cached_tokens=self._started.cached_tokens,
            completion_tokens=self._num_completion_tokens,
        )

    async def _settle(self) -> None:
        """Price the call, count it in the metrics and make its usage entry durable. Later calls do nothing.

        Raises StoreUnavailable.
        """
        if self._is_settled:
            return
        self._is_settled = True
        call, usage, ended_s = self._call, self._usage(), self._clock.monotonic_s()
        self.micro_neurons = price_in_micro_neurons(
            call.card.prices,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
            completion_tokens=usage.completion_tokens,
            audio_ms=usage.audio_ms,
            num_image_tiles=usage.num_image_tiles,
            num_steps=usage.num_steps,
            num_characters=usage.num_characters,
            is_batch=call.is_batch,
        )
        num_retried = 0
        if self._retries is not None and call.is_retry:
            num_retried = await self._retries.num_retried(call, self._retry_lookup)
        entry = self._entry(usage, ended_s, num_retried)
        _export(entry)
        await self._ledger.record(entry)
        self._on_settled(entry)
        if entry.is_useful and self._retries is not None:
            self._retries.add(call)

    def _entry(self, usage: Usage, ended_s: float, num_retried: int) -> UsageEntry:
        call, tried = self._call, self._source.tried_node_ids
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
            attempts=len(tried),
            micro_neurons=self.micro_neurons,
            is_stream=call.is_stream,
            device_us=usage.device_us,
            audio_ms=usage.audio_ms,
            num_image_tiles=usage.num_image_tiles,
            bytes_in=call.num_bytes_in,
            bytes_out=self._num_bytes_out,
            num_tool_calls=self._num_tool_calls,
            num_retried=num_retried,
            is_useful=self._is_useful(),
            is_batch=call.is_batch,
            queue_us=usage.queue_us,
            prefill_us=usage.prefill_us,
            decode_us=usage.decode_us,
            tried_nodes=",".join(tried) if len(tried) > 1 else "",
        )

    def _is_useful(self) -> bool:
        """Return True if the call finished (in the requested format), complete and before its deadline."""
        is_complete = isinstance(self._end, Finished) and not self._is_cut_short
        return is_complete and asyncio.get_running_loop().time() <= self._call.deadline_s


@dataclass(frozen=True)
class _ModelMetrics:
    """The metrics of one model with bound labels; looking labels up costs more than counting."""

    seconds: Histogram
    ttft_seconds: Histogram
    prompt_tokens: BufferedCounter
    cached_tokens: BufferedCounter
    completion_tokens: BufferedCounter
    outcomes: dict[str, BufferedCounter]


@lru_cache(maxsize=4096)
def _metrics_of(model: str) -> _ModelMetrics:
    return _ModelMetrics(
        metrics.CALL_SECONDS.labels(model),
        metrics.TTFT_SECONDS.labels(model),
        BufferedCounter(metrics.PROMPT_TOKENS.labels(model)),
        BufferedCounter(metrics.CACHED_TOKENS.labels(model)),
        BufferedCounter(metrics.COMPLETION_TOKENS.labels(model)),
        {},
    )


def _export(entry: UsageEntry) -> None:
    """Count one ended call in this process's metrics."""
    model_metrics = _metrics_of(entry.model)
    outcome = "finished" if entry.status in ("stop", "length", "tool_calls") else entry.status
    counter = model_metrics.outcomes.get(outcome)
    if counter is None:
        counter = model_metrics.outcomes[outcome] = BufferedCounter(metrics.CALLS.labels(entry.model, outcome))
    counter.add()
    model_metrics.seconds.observe(entry.duration_ms / 1000)
    if entry.ttft_ms is not None and entry.is_stream:
        model_metrics.ttft_seconds.observe(entry.ttft_ms / 1000)
    model_metrics.prompt_tokens.add(entry.prompt_tokens)
    model_metrics.cached_tokens.add(entry.cached_tokens)
    model_metrics.completion_tokens.add(entry.completion_tokens)
