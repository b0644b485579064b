"""Readiness of a platform: the gateway's `/readyz`, and the status that its nodes publish.

Speaks HTTP over a plain socket, so that `hearth up` does not wait for an HTTP library to be imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from engine.protocol.status import READY_STATES, NodeStatus

if TYPE_CHECKING:
    from storage.ephemeral import Ephemeral

_HTTP_TIMEOUT_S = 2.0
_MAX_HEAD_BYTES = 4096


async def is_gateway_ready(host: str, port: int) -> bool:
    """Return True if the gateway answers `/readyz` with 200 within two seconds."""
    try:
        async with asyncio.timeout(_HTTP_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                response = await reader.read(_MAX_HEAD_BYTES)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return response.split(b" ", 2)[1:2] == [b"200"]


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
        if any(replica.state in READY_STATES for replica in replicas):
            ready.add(node_id)
        elif replicas and all(replica.state == "failed" for replica in replicas):
            failed[node_id] = replicas[0].detail or "no reason given"
    return LoadProgress(frozenset(ready), failed)
