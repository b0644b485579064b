"""Enrollment: a node without a service key joins with a one-time token, and keeps its copy of the key ring current.

The node creates its key pair itself and sends the public key to a gateway, which adds it to the key ring.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from engine.node.settings import NodeSettings
from service_identity import key_ring
from service_identity.service_identity import ServiceIdentity
from service_identity.service_tokens import LEEWAY_S, Ring

logger = logging.getLogger(__name__)

REFRESH_INTERVAL_S = 10.0
RING_AUDIENCE = "gateway/ring"
_TIMEOUT_S = 10.0
_MAX_RESPONSE_BYTES = 2 << 20


class EnrollmentFailed(Exception):
    """The node cannot join. The text is for the operator, on one line."""


class GatewayUnavailable(Exception):
    """The gateway does not respond."""


async def enroll(settings: NodeSettings) -> bool:
    """Join with the token of the settings if this node has no key yet; return True if it has joined now.

    Raises EnrollmentFailed. Nothing is left behind then, and the node can try again.
    """
    if not settings.join_token or any(settings.service_keys.glob("*.pem")):
        return False
    private = key_ring.generate()
    body = {
        "token": settings.join_token,
        "node_id": settings.name,
        "pop": settings.pop,
        "public_key": key_ring.public_half(private),
    }
    path = key_ring.write_private_key(settings.service_keys, private)  # first, so that no accepted key is lost
    try:
        try:
            report = await asyncio.to_thread(_post, settings, "/nodes/enroll", body)
        except GatewayUnavailable as error:
            raise EnrollmentFailed(f"HEARTH_GATEWAY_URL: {error}") from None
        _check_clock(report)
        _write_ring(settings.service_ring, report)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    logger.info("node enrolled", extra={"node_id": settings.name, "pop": settings.pop, "gateway": settings.gateway_url})
    return True


async def keep_ring_current(settings: NodeSettings, identity: ServiceIdentity) -> None:
    """Read the key ring from the gateway every few seconds until cancelled, so that new gateways and revocations become
    known. Does nothing without HEARTH_GATEWAY_URL."""
    has_failed = False
    while settings.gateway_url:
        await asyncio.sleep(REFRESH_INTERVAL_S)
        try:
            report = await asyncio.to_thread(_post, settings, "/nodes/ring", {"token": identity.sign(RING_AUDIENCE)})
            await asyncio.to_thread(_write_ring, settings.service_ring, report)
            has_failed = False
        except (EnrollmentFailed, GatewayUnavailable) as error:
            if not has_failed:
                logger.warning("the key ring could not be read from the gateway", extra={"reason": str(error)})
            has_failed = True
    await asyncio.Event().wait()


def _post(settings: NodeSettings, path: str, body: dict[str, str]) -> dict[str, Any]:
    """Send a request and return its `result`. Raises EnrollmentFailed if the gateway refuses it, GatewayUnavailable."""
    url = f"{settings.gateway_url.rstrip('/')}/client/v4{path}"
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=_tls(settings, url)) as response:  # noqa: S310
            return _result_of(response.read(_MAX_RESPONSE_BYTES))
    except urllib.error.HTTPError as error:
        raise EnrollmentFailed(_message_of(error)) from None
    except (OSError, ValueError) as error:
        raise GatewayUnavailable(f"the gateway at {settings.gateway_url} does not respond: {error}") from None


def _tls(settings: NodeSettings, url: str) -> ssl.SSLContext | None:
    if not url.startswith("https://"):
        return None
    context = ssl.create_default_context()
    if settings.tls_ca is not None:
        context.load_verify_locations(settings.tls_ca)
    return context


def _result_of(content: bytes) -> dict[str, Any]:
    try:
        result = json.loads(content)["result"]
    except (ValueError, KeyError, TypeError):
        result = None
    if not isinstance(result, dict):
        raise EnrollmentFailed("the response is not from a Hearth gateway; check HEARTH_GATEWAY_URL")
    return result


def _message_of(error: urllib.error.HTTPError) -> str:
    try:
        message = json.loads(error.read(_MAX_RESPONSE_BYTES))["errors"][0]["message"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        message = f"the gateway answers with status {error.code}; check HEARTH_GATEWAY_URL"
    return f"the gateway refused this node: {message}"


def _check_clock(report: dict[str, Any]) -> None:
    """Raise EnrollmentFailed if the clocks differ so much that service tokens would be rejected."""
    ahead_s = time.time() - float(report.get("time_s", 0.0))
    if abs(ahead_s) > LEEWAY_S:
        direction = "ahead of" if ahead_s > 0 else "behind"
        raise EnrollmentFailed(
            f"this machine's clock is {abs(ahead_s):.0f} s {direction} the gateway's; at most {LEEWAY_S} s are allowed"
        )


def _write_ring(path: Path, report: dict[str, Any]) -> None:
    """Write the ring if it has changed. Raises EnrollmentFailed."""
    try:
        ring = msgspec.convert(report.get("ring"), Ring)
        if path.exists() and key_ring.read_ring(path).ring == ring:
            return
        key_ring.change_ring(path, lambda _old: ring, now_s=time.time())
    except (msgspec.ValidationError, ValueError, OSError, key_ring.UnsafeKeyFile) as error:
        raise EnrollmentFailed(f"the key ring cannot be written to {path}: {error}") from None
