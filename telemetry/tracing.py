"""OpenTelemetry traces, exported over OTLP/HTTP. Off unless an URL is set; the libraries are imported only then.

Spans are created from times that were taken anyway, so a call that is not traced costs one comparison. Spans carry ids,
model names, counts and states, never content, credentials or accounts.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from telemetry.settings import SettingError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

log = logging.getLogger(__name__)

EXPORT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_MS = 3000
MAX_QUEUED_SPANS = 8192  # further spans are dropped while the collector is unavailable

Attributes = Mapping[str, str | int | float | bool]


class Tracing:
    """Exports spans to an OTLP collector. Use `open_tracing`."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("hearth")
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self, name: str, traceparent: str, start_ns: int, attributes: Attributes, *, is_server: bool
    ) -> Trace | None:
        """Begin the span of a call as a child of `traceparent`, or as a new trace if that is empty or malformed. Return
        None if the call is not sampled."""
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        kind = SpanKind.SERVER if is_server else SpanKind.INTERNAL
        span = self._tracer.start_span(name, parent, kind, dict(attributes), start_time=start_ns)
        return Trace(self._tracer, span) if span.is_recording() else None

    def close(self) -> None:
        """Export what is queued, within CLOSE_TIMEOUT_MS."""
        self._provider.force_flush(CLOSE_TIMEOUT_MS)
        self._provider.shutdown()


class Trace:
    """The span of one call, and the spans inside it. Times are nanoseconds of the wall clock."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        from opentelemetry.trace import set_span_in_context

        self._tracer = tracer
        self._span = span
        self._context: Context = set_span_in_context(span)
        self._is_over = False

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` of the call's span, for the process that continues the trace."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

    def span(self, name: str, start_ns: int, end_ns: int, attributes: Attributes | None = None) -> None:
        """Add a span that is over."""
        span = self._tracer.start_span(name, self._context, attributes=dict(attributes or {}), start_time=start_ns)
        span.end(max(start_ns, end_ns))

    def end(self, attributes: Attributes, error: str = "") -> None:
        """End the call's span; `error` is the reason of a failure. Later calls do nothing."""
        if self._is_over:
            return
        self._is_over = True
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes(dict(attributes))
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(time.time_ns())


def open_tracing(url: str, ratio: float, process: str, pop: str, instance: str = "") -> Tracing | None:
    """Return tracing for this process; None without `url`. Raises SettingError if the libraries are missing."""
    if not url:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise SettingError(
            f"HEARTH_TRACES_URL needs the extra `tracing`: pip install 'hearth[tracing]' ({error})"
        ) from None
    resource = Resource(
        {
            "service.name": f"hearth-{process}",
            "service.instance.id": instance or socket.gethostname(),
            "hearth.pop": pop,
        }
    )
    provider = TracerProvider(resource=resource, sampler=ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS))
    log.info("traces are exported", extra={"ratio": ratio})
    return Tracing(provider)
