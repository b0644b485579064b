"""Liveness, readiness and metrics of the gateway process. Public; contains nothing about tenants."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from gateway import envelope
from gateway.services import Services
from telemetry import metrics


async def healthz(_services: Services, _request: Request) -> Response:
    """Return 200 while the process runs, also when its dependencies are down."""
    return Response(envelope.encode({"status": "ok"}), media_type="application/json")


async def readyz(services: Services, _request: Request) -> Response:
    """Return 200 if the gateway can serve calls, else 503 with the reason."""
    missing = services.missing_for_readiness()
    body = {
        "status": "ready" if missing is None else "not ready",
        "reason": missing,
        "num_nodes": services.nodes.num_reachable,
        "hot_models": services.nodes.hot_models(),
    }
    headers = {} if missing is None else {"retry-after": "1"}
    status = 200 if missing is None else 503
    return Response(envelope.encode(body), status, headers=headers, media_type="application/json")


async def prometheus(_services: Services, _request: Request) -> Response:
    """Get the metrics in Prometheus text format."""
    return Response(metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})
