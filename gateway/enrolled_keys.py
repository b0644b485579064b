"""The keys of enrolled nodes in this gateway's key ring.

The database has the keys of all nodes that have joined with a token. Each gateway adds those that are missing to its
own key ring file. A key that was revoked there stays revoked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from service_identity import key_ring
from service_identity.service_identity import ServiceIdentity
from service_identity.service_tokens import PublicKey, Ring
from storage.database import Database
from storage.errors import StoreUnavailable
from tenants.node_enrollment import NodeKey, find_keys

log = logging.getLogger(__name__)

SYNC_INTERVAL_S = 5.0
RING_AUDIENCE = "gateway/ring"


class EnrolledKeys:
    """Keeps the key ring file `ring` complete, and verifies nodes that read it."""

    def __init__(self, database: Database, ring: Path, identity: ServiceIdentity) -> None:
        self._database = database
        self._ring = ring
        self._identity = identity
        self._known: set[str] = set()  # ids of keys that the file is known to have
        self._has_failed = False

    async def run(self) -> None:
        """Add new keys until cancelled."""
        while True:
            try:
                await self.sync()
                self._has_failed = False
            except (OSError, key_ring.UnsafeKeyFile) as error:
                if not self._has_failed:
                    log.error("keys of enrolled nodes cannot be added to the key ring", extra={"reason": str(error)})
                self._has_failed = True
            except StoreUnavailable:
                pass
            await asyncio.sleep(SYNC_INTERVAL_S)

    async def sync(self) -> None:
        """Add missing keys now. Raises UnsafeKeyFile, OSError, StoreUnavailable."""
        missing = [key for key in await find_keys(self._database, time.time()) if key.kid not in self._known]
        if missing:
            await self.add(missing)

    async def add(self, keys: list[NodeKey]) -> None:
        """Add keys to the file, except those that the file has and those of revoked services. Raises UnsafeKeyFile,
        OSError."""

        def change(ring: Ring) -> Ring:
            known = {key.kid for key in ring.keys}
            for key in keys:
                if key.kid not in known and key.subject not in ring.revoked_subjects:
                    ring = key_ring.with_key(ring, PublicKey(**vars(key)))
            return ring

        await asyncio.to_thread(key_ring.change_ring, self._ring, change, now_s=time.time())
        self._known |= {key.kid for key in keys}

    def is_node(self, token: str) -> bool:
        """Return True for a service token with which a node may read the ring at any gateway."""
        return self._identity.verify_token(token, {"node"}, audience=RING_AUDIENCE) is not None

    async def read(self) -> Ring:
        """Return the ring. Raises UnsafeKeyFile."""
        return (await asyncio.to_thread(key_ring.read_ring, self._ring)).ring
