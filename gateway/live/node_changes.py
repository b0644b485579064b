"""The changed nodes of the fleet, as events: at most MAX_NODES a tick, those that wait longest first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from gateway.nodes.fleet import Fleet, Version

TICK_S = 1.0
MAX_NODES = 100  # bounds what a busy fleet costs; the others follow in the next ticks


async def node_changes(fleet: Fleet) -> AsyncIterator[list[msgspec.Raw]]:
    """Yield lists of nodes that have changed since the list before, until closed."""
    sent: dict[str, Version] = fleet.versions()
    sent_at = dict.fromkeys(sent, 0)
    tick = 0
    while True:
        await asyncio.sleep(TICK_S)
        tick += 1
        versions = fleet.versions()
        changed = [node_id for node_id, version in versions.items() if sent.get(node_id) != version]
        if len(changed) > MAX_NODES:
            changed.sort(key=lambda node_id: sent_at.get(node_id, -1))
        for node_id in [node_id for node_id in sent if node_id not in versions]:
            del sent[node_id]
            sent_at.pop(node_id, None)
        found = []
        for node_id in changed[:MAX_NODES]:
            sent[node_id], sent_at[node_id] = versions[node_id], tick
            found.append(fleet.encoded(node_id))
        nodes = [node for node in found if node is not None]
        if nodes:
            yield nodes
