"""Heartbeat: publish this node's status to Redis with an expiry.

While Redis is unavailable, the node keeps serving and retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from engine.protocol.status import NodeStatus
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable

logger = logging.getLogger(__name__)

KIND = "nodes"
INTERVAL_S = 1.0
TTL_S = 5.0
_MIN_GAP_S = 0.05  # between two announcements, however often the status changes


class DuplicateNodeId(Exception):
    """Another process announces itself with this node's id, and was there first. The text is for the operator."""


class Presence:
    """Publishes the result of `status` every second and soon after `changed`.

    Of two processes that announce themselves with the same id, `run` of the later one raises DuplicateNodeId.
    """

    def __init__(self, ephemeral: Ephemeral, node_id: str, status: Callable[[], NodeStatus]) -> None:
        self._ephemeral = ephemeral
        self._node_id = node_id
        self._status = status
        self._change = asyncio.Event()
        self._is_unavailable = False
        self._has_announced = False
        self._has_warned = False

    def changed(self) -> None:
        """Request an announcement because the status has changed."""
        self._change.set()

    async def run(self) -> None:
        """Run until cancelled. Raises DuplicateNodeId."""
        while True:
            self._change.clear()
            await self._announce()
            await asyncio.sleep(_MIN_GAP_S)
            with contextlib.suppress(TimeoutError):
                # In Python 3.11, `wait_for` loses a cancellation that comes together with the change.
                async with asyncio.timeout(INTERVAL_S - _MIN_GAP_S):
                    await self._change.wait()

    async def withdraw(self) -> None:
        """Remove the status, so that gateways need not wait for its expiry."""
        with contextlib.suppress(StoreUnavailable):
            await self._ephemeral.withdraw(KIND, self._node_id)

    async def _announce(self) -> None:
        status = self._status()
        try:
            if self._has_announced:
                self._check_id(status, await self._ephemeral.find_present(KIND, self._node_id))
            await self._ephemeral.announce(KIND, self._node_id, msgspec.json.encode(status), TTL_S)
            self._has_announced = True
        except StoreUnavailable as error:
            if not self._is_unavailable:
                logger.warning("presence cannot be published", extra={"reason": str(error)})
            self._is_unavailable = True
            return
        if self._is_unavailable:
            logger.info("presence is published again")
        self._is_unavailable = False

    def _check_id(self, own: NodeStatus, payload: bytes | None) -> None:
        """Raise DuplicateNodeId if a process that started earlier has replaced this process's announcement."""
        if payload is None:
            return
        try:
            found = msgspec.json.decode(payload, type=NodeStatus)
        except msgspec.DecodeError:
            return
        if not found.instance or found.instance == own.instance:
            return
        if (found.started_s, found.instance) < (own.started_s, own.instance):
            raise DuplicateNodeId(
                f"HEARTH_NODE_ID: another node announces itself as {self._node_id} from {found.address}; "
                "every node needs an id of its own"
            )
        if not self._has_warned:
            logger.error("another node has started with this node's id", extra={"address": found.address})
        self._has_warned = True
