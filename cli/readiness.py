"""Whether a platform answers: the gateway's readiness over HTTP, and what its nodes publish about themselves.

Speaks HTTP by hand over one socket, so that starting `hearth up` never waits for an HTTP library to load.
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
_MAX_ANSWER_BYTES = 1 << 20


async def http_get(
    address: str | tuple[str, int], path: str, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes] | None:
    """Status and body of a GET, to a Unix socket's path or a (host, port). None when nobody answers in time."""
    try:
        async with asyncio.timeout(_HTTP_TIMEOUT_S):
            if isinstance(address, str):
                reader, writer = await asyncio.open_unix_connection(address)
            else:
                reader, writer = await asyncio.open_connection(*address)
            try:
                lines = [f"GET {path} HTTP/1.0", "Host: localhost", "Connection: close"]
                lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
                writer.write("\r\n".join([*lines, "", ""]).encode())
                await writer.drain()
                answer = await reader.read(_MAX_ANSWER_BYTES)
                while not reader.at_eof() and len(answer) < _MAX_ANSWER_BYTES:
                    answer += await reader.read(_MAX_ANSWER_BYTES)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    parts = head.split(b" ", 2)
    if len(parts) < 2 or not parts[1].isdigit():
        return None
    return int(parts[1]), body


async def is_gateway_ready(host: str, port: int) -> bool:
    answer = await http_get((host, port), "/readyz")
    return answer is not None and answer[0] == 200


async def read_nodes(store: Ephemeral) -> dict[str, NodeStatus]:
    """What every living node last published, by node id. Raises StoreUnavailable."""
    published = await store.present("nodes")
    return {node_id: msgspec.json.decode(payload, type=NodeStatus) for node_id, payload in published.items()}


@dataclass(frozen=True)
class NodeProgress:
    """How far the awaited nodes are with one model. `failed` maps node id -> what the node says about it."""

    hot: frozenset[str]
    failed: dict[str, str]


def progress_of(nodes: Mapping[str, NodeStatus], awaited: Sequence[str], model: str) -> NodeProgress:
    """Which of the `awaited` node ids hold `model` hot, and which say that they cannot."""
    hot, failed = set(), {}
    for node_id in awaited:
        status = nodes.get(node_id)
        replicas = [replica for replica in status.replicas if replica.model == model] if status else []
        if any(replica.state == "ready" for replica in replicas):
            hot.add(node_id)
        elif replicas and all(replica.state == "failed" for replica in replicas):
            failed[node_id] = replicas[0].detail or "no reason given"
    return NodeProgress(frozenset(hot), failed)
