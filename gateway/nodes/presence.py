"""PresenceReader: the statuses that nodes publish, read often for near nodes and less often for far ones.

A status that has not changed is not decoded again. The cost is bounded: of a large fleet, only the nearest nodes are
read each time, and the others in turn.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import msgspec

from engine.protocol.status import NodeStatus
from storage.ephemeral import Ephemeral

log = logging.getLogger(__name__)

PRESENCE_KIND = "nodes"
NUM_NEAR = 128  # nodes whose status is read each time
FAR_INTERVAL = 30  # reads in which each other node is read once
INDEX_INTERVAL = 10  # reads for one of the list of ids, if it is longer than NUM_NEAR

_ADDRESS = re.compile(r"unix:///\S+|tcp://\S+:[0-9]{1,5}")
_decode_status = msgspec.json.Decoder(NodeStatus).decode


class PresenceReader:
    """Reads the presence of nodes. `distance_s` returns the round trip to a known node."""

    def __init__(self, ephemeral: Ephemeral, distance_s: Callable[[str], float]) -> None:
        self._ephemeral = ephemeral
        self._distance_s = distance_s
        self._num_reads = 0
        self._ids: list[str] = []
        self._order: list[str] = []  # known ids, the nearest first
        self._payloads: dict[str, bytes] = {}

    async def read(self) -> tuple[dict[str, NodeStatus], set[str]]:
        """Return the statuses that have changed, by node id, and the ids of nodes that are no longer present. Raises
        StoreUnavailable, and leaves the state unchanged then."""
        if self._num_reads % INDEX_INTERVAL == 0 or len(self._ids) <= NUM_NEAR:
            self._ids = await self._ephemeral.present_ids(PRESENCE_KIND)
        due = self._due()
        payloads = await self._ephemeral.read_payloads(PRESENCE_KIND, due)
        self._num_reads += 1
        changed: dict[str, NodeStatus] = {}
        absent = self._payloads.keys() - set(self._ids)
        for node_id, payload in zip(due, payloads, strict=True):
            if payload is not None and payload == self._payloads.get(node_id):
                continue
            status = None if payload is None else _read(node_id, payload)
            if payload is not None:
                self._payloads[node_id] = payload
            if status is not None:
                changed[node_id] = status
            elif node_id in self._payloads:
                absent.add(node_id)
        for node_id in absent:
            if node_id not in changed:
                self._payloads.pop(node_id, None)
        return changed, absent

    def _due(self) -> list[str]:
        """Return the ids to read now: unknown ones, the nearest, and a part of the others."""
        if len(self._ids) <= NUM_NEAR:
            return self._ids
        if self._num_reads % FAR_INTERVAL == 0 or not self._order:
            self._order = sorted(self._payloads.keys() & set(self._ids), key=lambda id: (self._distance_s(id), id))
        unknown = [node_id for node_id in self._ids if node_id not in self._payloads]
        far = self._order[NUM_NEAR + self._num_reads % FAR_INTERVAL :: FAR_INTERVAL]
        return list(dict.fromkeys([*unknown, *self._order[:NUM_NEAR], *far]))


def _read(node_id: str, payload: bytes) -> NodeStatus | None:
    """Return a node's status; None if it is malformed."""
    try:
        status = _decode_status(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        log.warning("node presence is unreadable", extra={"node_id": node_id})
        return None
    if status.node_id != node_id or not _ADDRESS.fullmatch(status.address):
        log.warning("node presence has another node's id or a malformed address", extra={"node_id": node_id})
        return None
    return status
