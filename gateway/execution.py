"""Start the calls of one request, each metered; several calls become one event stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.call import Call
from gateway.dispatch import Dispatch
from gateway.joined_calls import JoinedCalls
from gateway.metering import MeteredEvents
from gateway.request_context import RequestContext

RunningCalls = MeteredEvents | JoinedCalls


def start_calls(
    context: RequestContext, calls: Sequence[Call], on_first_output: Callable[[], None] | None
) -> RunningCalls:
    """Return the events of the calls. The first `take` sends the calls to nodes; `close` must be awaited in any case.
    `on_first_output` is called when a call has output."""
    if len(calls) == 1:
        return _start(context, calls[0], on_first_output)
    return JoinedCalls([_start(context, call, on_first_output) for call in calls], calls[0].task.num_choices)


def _start(context: RequestContext, call: Call, on_first_output: Callable[[], None] | None) -> MeteredEvents:
    services = context.services
    return MeteredEvents(
        call,
        Dispatch(call, services.node_selector, services.timeouts),
        context.ledger,
        services.settings.pop,
        services.clock,
        services.retry_tracker,
        on_first_output,
    )
