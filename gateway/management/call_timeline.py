"""`A/ai/usage/calls/{request_id}`: one call with its timeline, as the usage ledger stores it. Never content."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from starlette.responses import Response

from gateway.management.endpoint import ManagementRequest, existing, respond
from gateway.management.usage import UsageCall, render_call
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants.usage import usage_entries
from tenants.usage.usage_entries import UsageEntry

PhaseName = Literal["queue", "prefill", "decode", "send"]


class CallPhase(Struct, frozen=True):
    """A phase of a call, in milliseconds since its arrival."""

    name: PhaseName
    start_ms: float
    end_ms: float


class CallTimeline(Struct, frozen=True):
    """A call with its phases and the nodes that were tried, in order; the last one is the node that served it."""

    call: UsageCall  # type: ignore[valid-type]
    phases: list[CallPhase]
    num_retries: int
    nodes: list[str]


@describe(result=CallTimeline)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get one call of the account with its timeline."""
    request_id = request.path_params["request_id"]
    entry = existing(await usage_entries.find(services.database, request.account_id, request_id))
    nodes = entry.tried_nodes.split(",") if entry.tried_nodes else [entry.node_id] if entry.node_id else []
    timeline: dict[str, Any] = {
        "call": render_call(entry),
        "phases": phases_of(entry),
        "num_retries": max(0, entry.attempts - 1),
        "nodes": nodes,
    }
    return respond(timeline)


def phases_of(entry: UsageEntry) -> list[CallPhase]:
    """Return the phases of a call, which follow one another from its arrival to its end.

    `queue` includes the way to the node and failed attempts. The end of the prefill is the first token of a streamed
    call; of other calls, whose output arrives at once, the node's report says how long before the end it was. `send`
    is the time after the last token. A call without output has only `queue`.
    """
    end_ms = entry.duration_ms
    if entry.ttft_ms is None:
        return [CallPhase("queue", 0.0, end_ms)]
    decode_ms = min(entry.decode_us / 1000, end_ms)
    first_ms = min(entry.ttft_ms, end_ms) if entry.is_stream else end_ms - decode_ms
    prefill_ms = min(entry.prefill_us / 1000, first_ms)
    last_ms = min(first_ms + decode_ms, end_ms) if entry.decode_us else end_ms
    bounds = (0.0, first_ms - prefill_ms, first_ms, last_ms, end_ms)
    names: tuple[PhaseName, ...] = ("queue", "prefill", "decode", "send")
    phases = [CallPhase(name, bounds[i], bounds[i + 1]) for i, name in enumerate(names)]
    return [phase for phase in phases if phase.end_ms > phase.start_ms]
