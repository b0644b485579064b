"""The calls of one WebSocket on nodes: voice activity, transcriptions, chat and speech.

Each call has the account's current principal, so that limits, budgets and revocations apply as to other calls. Calls of
one utterance are metered together (`UtteranceUsage`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from catalog.registry import Resolved
from engine.protocol.events import Event, Failed, Finished, Result, Usage
from engine.protocol.tasks.automatic_speech_recognition import Segment, Transcript
from gateway.admission import ConcurrencySlot
from gateway.authentication import require_model
from gateway.call import Call, Endpoint, ParsedRequest
from gateway.dispatch import Dispatch
from gateway.errors import Refusal, failure
from gateway.metering import MeteredEvents
from gateway.preparation import make_calls
from gateway.request_context import RequestContext
from gateway.services import Services
from tenants.credentials.principal import Principal


@dataclass
class NodeCalls:
    """Makes calls for one WebSocket. `principal` is replaced whenever the credential is verified again."""

    services: Services
    principal: Principal
    slot: ConcurrencySlot
    request_id: str
    num_calls: int = 0

    def context(self, model: Resolved, endpoint: Endpoint) -> RequestContext:
        """Return the context of the next call, which has an id of its own. Raises Refusal."""
        require_model(self.principal, model.requested_name, model.card.name)
        self.num_calls += 1
        return RequestContext(
            services=self.services,
            endpoint=endpoint,
            request_id=f"{self.request_id}-{self.num_calls}",
            principal=self.principal,
            model=model,
            slot=self.slot,
            ledger=self.services.ledger,
            started_s=self.services.clock.monotonic_s(),
        )

    def make(self, model: Resolved, endpoint: Endpoint, task: Any) -> Call:
        """Return a call for a task that is not streamed. Raises Refusal."""
        return self.prepare(model, endpoint, task, is_stream=False)[1]

    def prepare(
        self, model: Resolved, endpoint: Endpoint, task: Any, *, is_stream: bool
    ) -> tuple[RequestContext, Call]:
        """Return a call for a task, and its context. Raises Refusal."""
        context = self.context(model, endpoint)
        parsed = ParsedRequest(task, is_stream, lambda _call: task.native_renderer())
        (call,) = make_calls(context, parsed)
        return context, call

    async def run(self, call: Call, usage: UtteranceUsage | None = None) -> Result:
        """Run a call on a node, and add its device time to `usage`. Raises Refusal."""
        self.services.blocked_inputs.check(call)
        dispatch = Dispatch(call, self.services.node_selector, self.services.timeouts, self.services.failover)
        try:
            events = await dispatch.take()
        finally:
            if usage is not None:
                usage.add_nodes(dispatch.tried_node_ids)
            dispatch.close()
        last = events[-1]
        if usage is not None and isinstance(last, Finished | Failed):
            usage.device_us += last.usage.device_us
        if isinstance(last, Failed):
            raise failure(last.reason, last.message)
        return next(event for event in events if isinstance(event, Result))

    def meter(self, call: Call, usage: UtteranceUsage) -> MeteredEvents:
        """Return the events with which an utterance is recorded: one usage entry for all its calls."""
        services = self.services
        return MeteredEvents(
            call,
            usage,
            services.ledger,
            services.settings.pop,
            services.clock,
            on_settled=services.call_feed.record,
        )


@dataclass
class UtteranceUsage:
    """Usage of all calls of one utterance; a `metering.Source` whose only event is the end.

    An utterance that ends early, because the client disconnects, is charged for its audio until then.
    """

    audio_ms: int = 0
    device_us: int = 0
    node_id: str = ""
    tried_node_ids: list[str] = field(default_factory=list)
    _end: asyncio.Future[Event] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def add_nodes(self, node_ids: Sequence[str]) -> None:
        """Note the nodes of a call."""
        for node_id in node_ids:
            self.node_id = node_id
            if node_id not in self.tried_node_ids:
                self.tried_node_ids.append(node_id)

    def finish(self) -> None:
        """End the utterance successfully."""
        self._end.set_result(Finished("stop", self._usage()))

    def fail(self, refusal: Refusal) -> None:
        """End the utterance with a refusal, which `take` raises."""
        self._end.set_exception(refusal)

    async def take(self, not_before_s: float = 0.0) -> list[Event]:  # noqa: ARG002
        return [await self._end]

    def _usage(self) -> Usage:
        return Usage(audio_ms=self.audio_ms, device_us=self.device_us)

    def cancel(self) -> None: ...
    def abandon(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...

    async def final_events(self, timeout_s: float) -> list[Event]:  # noqa: ARG002
        return [Failed("aborted", usage=self._usage())]


def shifted(result: Result, offset_s: float) -> list[Segment]:
    """Return the segments of a transcript that begins at `offset_s`."""
    found = Transcript.of_result(result)
    return [_shift(segment, offset_s) for segment in found.segments if segment.text]


def _shift(segment: Segment, offset_s: float) -> Segment:
    words = tuple(
        type(word)(word.word, round(word.start + offset_s, 2), round(word.end + offset_s, 2)) for word in segment.words
    )
    return Segment(round(segment.start + offset_s, 2), round(segment.end + offset_s, 2), segment.text, words)
