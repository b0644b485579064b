"""Liveness, readiness and metrics of the gateway process. Public by default; contains nothing about tenants."""

from __future__ import annotations

import asyncio
import hmac
import math

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.services import Services
from telemetry import metrics

METRICS_PATH = "/metrics"


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


class Metrics:
    """Serves the metrics in Prometheus text format, with the token of the settings if there is one.

    Metrics are rendered at most once per HEARTH_METRICS_MAX_AGE_S, in a thread: rendering takes long enough to delay
    calls.
    """

    def __init__(self) -> None:
        self._text = b""
        self._rendered_s = -math.inf
        self._rendering: asyncio.Future[bytes] | None = None

    async def __call__(self, services: Services, request: Request) -> Response:
        """Get the metrics in Prometheus text format."""
        token = services.settings.metrics_token
        if token:
            _check_token(request.headers.getlist("authorization"), token)
        return Response(
            await self._current(services.settings.metrics_max_age_s), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    async def _current(self, max_age_s: float) -> bytes:
        loop = asyncio.get_running_loop()
        if self._rendering is None and loop.time() - self._rendered_s >= max_age_s:
            metrics.flush()
            self._rendering = asyncio.ensure_future(asyncio.to_thread(metrics.render_flushed))
            self._rendering.add_done_callback(self._take)
        if self._rendering is not None:
            return await asyncio.shield(self._rendering)
        return self._text

    def _take(self, rendering: asyncio.Future[bytes]) -> None:
        self._rendering = None
        if not rendering.cancelled() and rendering.exception() is None:
            self._text, self._rendered_s = rendering.result(), rendering.get_loop().time()


def _check_token(authorization: list[str], token: str) -> None:
    """Raise Refusal unless the only Authorization header has the token."""
    scheme, _, given = (authorization[0] if len(authorization) == 1 else "").partition(" ")
    is_equal = hmac.compare_digest(given.strip().encode(), token.encode())
    if scheme.lower() != "bearer" or not is_equal:
        raise Refusal(Reason.METRICS_REFUSED)
