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


class Presence:
    """Publishes the result of `status` every second and soon after `changed`."""

    def __init__(self, ephemeral: Ephemeral, node_id: str, status: Callable[[], NodeStatus]) -> None:
        self._ephemeral = ephemeral
        self._node_id = node_id
        self._status = status
        self._change = asyncio.Event()
        self._is_unavailable = False

    def changed(self) -> None:
        """Request an announcement because the status has changed."""
        self._change.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._change.clear()
            await self._announce()
            await asyncio.sleep(_MIN_GAP_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._change.wait(), INTERVAL_S - _MIN_GAP_S)

    async def withdraw(self) -> None:
        """Remove the status, so that gateways need not wait for its expiry."""
        with contextlib.suppress(StoreUnavailable):
            await self._ephemeral.withdraw(KIND, self._node_id)

    async def _announce(self) -> None:
        try:
            await self._ephemeral.announce(KIND, self._node_id, msgspec.json.encode(self._status()), TTL_S)
        except StoreUnavailable as error:
            if not self._is_unavailable:
                logger.warning("presence cannot be published", extra={"reason": str(error)})
            self._is_unavailable = True
            return
        if self._is_unavailable:
            logger.info("presence is published again")
        self._is_unavailable = False
