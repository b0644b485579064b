"""A collector that receives OpenTelemetry spans over OTLP/HTTP and keeps them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class Collected:
    """One span."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


@dataclass
class Collector:
    """The running collector. `raw` has the received bytes."""

    url: str = ""
    spans: list[Collected] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> dict[str, Collected]:
        """Return the spans of a trace by name."""
        return {span.name: span for span in list(self.spans) if span.trace_id == trace_id}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.raw.append(body)
            collector.spans += _spans_of(body)
            response = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _spans_of(body: bytes) -> list[Collected]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Collected(
            service=next(each.value.string_value for each in found.resource.attributes if each.key == "service.name"),
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            attributes={each.key: _value_of(each.value) for each in span.attributes},
        )
        for found in request.resource_spans
        for scope in found.scope_spans
        for span in scope.spans
    ]


def _value_of(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
