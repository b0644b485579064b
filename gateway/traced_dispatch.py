"""TracedDispatch: the dispatch of a call that is traced. Adds the spans admission, placement, first token, completion
and dispatch to the trace of the call. Untraced calls use `Dispatch` itself."""

from __future__ import annotations

import time

from engine.protocol.events import Event, Failed, Finished
from gateway.call import Call
from gateway.dispatch import Dispatch, Timeouts
from gateway.failover import Failover
from gateway.node_selection import NodeSelector
from telemetry.tracing import Trace, Tracing


def begin_trace(tracing: Tracing, call: Call, traceparent: bytes | None, elapsed_s: float) -> Trace | None:
    """Return the trace of a call that arrived `elapsed_s` ago, with its admission; None if the call is not sampled."""
    now_ns = time.time_ns()
    start_ns = now_ns - int(elapsed_s * 1e9)
    attributes: dict[str, str | int | float | bool] = {
        "hearth.request_id": call.request_id,
        "hearth.model": call.card.name,
        "hearth.task": call.card.task_slug,
        "hearth.is_stream": call.is_stream,
        "hearth.is_batch": call.is_batch,
    }
    trace = tracing.begin("hearth.call", (traceparent or b"").decode("latin-1"), start_ns, attributes, is_server=True)
    if trace is not None:
        trace.span("hearth.admission", start_ns, now_ns)
    return trace


class TracedDispatch(Dispatch):
    """A dispatch that records its times in `trace`, and ends the trace when it is closed."""

    def __init__(
        self, call: Call, selector: NodeSelector, timeouts: Timeouts, failover: Failover, trace: Trace
    ) -> None:
        super().__init__(call, selector, timeouts, failover)
        self._trace = trace
        self._sent_ns = 0
        self._first_event_ns = 0
        self._end: Finished | Failed | None = None

    def _send_to_next(self) -> None:
        start_ns = time.time_ns()
        try:
            super()._send_to_next()
        finally:
            self._sent_ns = time.time_ns()
            self._trace.span("hearth.placement", start_ns, self._sent_ns, {"hearth.node_id": self.node_id})

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        events = await super().take(not_before_s)
        if not self._first_event_ns:
            self._first_event_ns = time.time_ns()
            self._trace.span(
                "hearth.first_token", self._sent_ns, self._first_event_ns, {"hearth.node_id": self.node_id}
            )
        if isinstance(events[-1], Finished | Failed):
            self._end = events[-1]
        return events

    def close(self) -> None:
        super().close()
        now_ns = time.time_ns()
        if self._sent_ns:
            tried = ",".join(self.tried_node_ids)
            self._trace.span("hearth.dispatch", self._sent_ns, now_ns, {"hearth.tried_node_ids": tried})
        if self._first_event_ns:
            self._trace.span("hearth.completion", self._first_event_ns, now_ns)
        end = self._end
        usage = (
            {}
            if end is None
            else {
                "hearth.prompt_tokens": end.usage.prompt_tokens,
                "hearth.cached_tokens": end.usage.cached_tokens,
                "hearth.completion_tokens": end.usage.completion_tokens,
            }
        )
        status = "unfinished" if end is None else end.reason
        self._trace.end(
            {"hearth.node_id": self.node_id, "hearth.status": status, **usage},
            error="" if isinstance(end, Finished) else status,
        )
