"""Weights from other nodes of the same PoP, which are nearer than the object store.

A node serves the verified files of its disk cache to nodes with a valid service key. The node that downloads checks
every file's SHA-256, so a peer that sends wrong bytes is only ignored.
"""

from __future__ import annotations

import http.client
import logging
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from engine.node.presence import KIND
from engine.protocol.status import NodeStatus
from service_identity.service_identity import ServiceIdentity
from storage.ephemeral import Ephemeral
from storage.errors import Missing, StoreError, StoreUnavailable
from storage.object_backend import CHUNK_BYTES, ObjectStat
from storage.objects import Objects

logger = logging.getLogger(__name__)

MAX_PEERS = 3  # asked for one model
TIMEOUT_S = 5.0
_HELD_STATES = ("ready", "idle", "sleeping", "evicted", "draining")
_RANGE = re.compile(r"bytes [0-9]+-[0-9]+/([0-9]+)")


class Peers:
    """Finds the nodes of this node's PoP that have a model on disk."""

    def __init__(self, ephemeral: Ephemeral, identity: ServiceIdentity, node_id: str, pop: str) -> None:
        self._ephemeral = ephemeral
        self._identity = identity
        self._node_id = node_id
        self._pop = pop

    async def having(self, revision: str) -> list[Objects]:
        """Return up to MAX_PEERS nodes that have the model, in random order. The caller closes them."""
        try:
            payloads = await self._ephemeral.present(KIND)
        except StoreError:
            return []
        found = [status for payload in payloads.values() if (status := self._peer(payload, revision)) is not None]
        random.shuffle(found)
        return [Objects(PeerBackend(status, self._identity)) for status in found[:MAX_PEERS]]

    def _peer(self, payload: bytes, revision: str) -> NodeStatus | None:
        try:
            status = msgspec.json.decode(payload, type=NodeStatus)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        is_usable = status.pop == self._pop and status.node_id != self._node_id and status.http_address
        holds = any(each.revision == revision and each.state in _HELD_STATES for each in status.replicas)
        return status if is_usable and holds else None


class PeerBackend:
    """The files of one node, read over its HTTP interface. Keys are those of the object store."""

    def __init__(self, status: NodeStatus, identity: ServiceIdentity) -> None:
        self._address = status.http_address
        self._audience = f"node/{status.node_id}"
        self._identity = identity

    def stat(self, key: str) -> ObjectStat:
        connection = self._connect()
        try:
            response = self._request(connection, key, 0, 1)
            size = _RANGE.fullmatch(response.getheader("content-range", ""))
            response.read()
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"{self._audience} does not respond: {error!r}") from error
        finally:
            connection.close()
        if size is None:
            raise StoreUnavailable(f"{self._audience} does not state the size of {key}")
        return ObjectStat(int(size[1]), None)

    def read(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        connection = self._connect()
        try:
            response = self._request(connection, key, start, end)
            while chunk := response.read(CHUNK_BYTES):
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"{self._audience} does not respond: {error!r}") from error
        finally:
            connection.close()

    def put_file(self, key: str, path: Path, sha256: str | None) -> str:
        raise NotImplementedError("files of peers are read only")

    def put_bytes(self, key: str, data: bytes, sha256: str) -> None:
        raise NotImplementedError("files of peers are read only")

    def list(self, prefix: str) -> list[str]:
        raise NotImplementedError("files of peers are not listed")

    def delete(self, key: str) -> None:
        raise NotImplementedError("files of peers are read only")

    def ping(self) -> None:
        raise NotImplementedError("peers are not pinged")

    def close(self) -> None:
        """Do nothing: each request has a connection of its own."""

    def _connect(self) -> http.client.HTTPConnection:
        if self._address.startswith("unix://"):
            return _UnixConnection(self._address.removeprefix("unix://"))
        url = urlsplit(self._address)
        return http.client.HTTPConnection(url.hostname or "", url.port, timeout=TIMEOUT_S)

    def _request(
        self, connection: http.client.HTTPConnection, key: str, start: int, end: int | None
    ) -> http.client.HTTPResponse:
        token = self._identity.sign(self._audience)
        headers = {"authorization": f"Bearer {token}", "range": f"bytes={start}-{'' if end is None else end - 1}"}
        connection.request("GET", f"/files/{key}", headers=headers)
        response = connection.getresponse()
        if response.status == 404:
            raise Missing(f"{self._audience} does not have {key}")
        if response.status != 206:
            raise StoreUnavailable(f"{self._audience} answers with status {response.status}")
        return response


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)
