"""The spans of a call on a node: queue, prefill and decode, from the times that the call's usage reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.protocol.events import Failed, Finished
from engine.protocol.wire import Execute

if TYPE_CHECKING:
    from telemetry.tracing import Trace, Tracing


def begin_trace(tracing: Tracing, execute: Execute, node_id: str) -> Trace | None:
    """Begin the node's span in the trace of the gateway's call; None if the call is not traced."""
    attributes = {"hearth.request_id": execute.request_id, "hearth.model": execute.model, "hearth.node_id": node_id}
    return tracing.begin("hearth.node", execute.traceparent, time.time_ns(), attributes, is_server=False)


def end_trace(trace: Trace, end: Finished | Failed) -> None:
    """Add the phases of the call, and end the node's span."""
    usage = end.usage
    phases = {"hearth.queue": usage.queue_us, "hearth.prefill": usage.prefill_us, "hearth.decode": usage.decode_us}
    start_ns = time.time_ns() - 1000 * sum(phases.values())
    for name, duration_us in phases.items():
        if duration_us:
            trace.span(name, start_ns, start_ns + 1000 * duration_us)
        start_ns += 1000 * duration_us
    attributes = {
        "hearth.status": end.reason,
        "hearth.prompt_tokens": usage.prompt_tokens,
        "hearth.cached_tokens": usage.cached_tokens,
        "hearth.completion_tokens": usage.completion_tokens,
        "hearth.device_us": usage.device_us,
    }
    trace.end(attributes, error="" if isinstance(end, Finished) else end.reason)
