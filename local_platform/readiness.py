"""Readiness of a platform: the gateway's `/readyz`, and the status that its nodes publish.

Speaks HTTP over a plain socket, so that `hearth up` does not wait for an HTTP library to be imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from engine.protocol.status import NodeStatus

if TYPE_CHECKING:
    from storage.ephemeral import Ephemeral

_HTTP_TIMEOUT_S = 2.0
_MAX_RESPONSE_BYTES = 1 << 20


async def http_get(
    address: str | tuple[str, int], path: str, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes] | None:
    """Send a GET request to a Unix socket path or a (host, port), and return the response's status and body.

    Returns None if no valid response arrives within two seconds.
    """
    lines = [f"GET {path} HTTP/1.0", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    try:
        async with asyncio.timeout(_HTTP_TIMEOUT_S):
            response = await _exchange(address, "\r\n".join([*lines, "", ""]).encode())
    except (OSError, TimeoutError):
        return None
    head, _, body = response.partition(b"\r\n\r\n")
    parts = head.split(b" ", 2)
    if len(parts) < 2 or not parts[1].isdigit():
        return None
    return int(parts[1]), body


async def _exchange(address: str | tuple[str, int], request: bytes) -> bytes:
    """Send a request and return what the server sends until it closes the connection. Raises OSError."""
    is_unix = isinstance(address, str)
    reader, writer = await (asyncio.open_unix_connection(address) if is_unix else asyncio.open_connection(*address))
    try:
        writer.write(request)
        await writer.drain()
        response = b""
        while not reader.at_eof() and len(response) < _MAX_RESPONSE_BYTES:
            response += await reader.read(_MAX_RESPONSE_BYTES)
        return response
    finally:
        writer.close()


async def is_gateway_ready(host: str, port: int) -> bool:
    """Return True if the gateway answers `/readyz` with 200."""
    response = await http_get((host, port), "/readyz")
    return response is not None and response[0] == 200


async def read_nodes(store: Ephemeral) -> dict[str, NodeStatus]:
    """Return the status that each live node published last, by node id. Raises StoreUnavailable."""
    published = await store.present("nodes")
    return {node_id: msgspec.json.decode(payload, type=NodeStatus) for node_id, payload in published.items()}


@dataclass(frozen=True)
class LoadProgress:
    """Node ids that have one model ready, and node id -> error message of the nodes that failed to load it."""

    ready: frozenset[str]
    failed: dict[str, str]


def load_progress(nodes: Mapping[str, NodeStatus], expected: Sequence[str], model: str) -> LoadProgress:
    """Return how far the `expected` node ids are with loading `model`."""
    ready, failed = set(), {}
    for node_id in expected:
        status = nodes.get(node_id)
        replicas = [replica for replica in status.replicas if replica.model == model] if status else []
        if any(replica.state == "ready" for replica in replicas):
            ready.add(node_id)
        elif replicas and all(replica.state == "failed" for replica in replicas):
            failed[node_id] = replicas[0].detail or "no reason given"
    return LoadProgress(frozenset(ready), failed)
