"""Weights from other nodes of the PoP: asked before the object store, authenticated, and verified by digest."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from catalog.manifest import Manifest, blob_key
from engine.node.http_app import HttpApp
from engine.node.peer_files import PeerBackend, Peers
from engine.node.presence import KIND
from engine.node.served_files import ServedFiles
from engine.protocol.status import NodeStatus, ReplicaStatus
from engine.serving.addresses import Address
from engine.serving.disk_cache import DiskCache
from engine.serving.http_server import HttpServer
from engine.serving.model_store import ModelStore, ModelUnavailable
from storage import objects as objects_module
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from storage.objects import Objects
from tests.engine.node.published import publish
from tests.service_keys import service_keys
from tests.waiting import PATIENCE_S

NAME = "@cf/test/model"
WEIGHTS = bytes(range(256)) * 4096


class Pair:
    """Node `n1`, which has served a model, and the store of node `n2`, which has nothing yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = Objects.connect(f"file://{folder}/objects")
        self.caches = [DiskCache(folder / name, 1 << 30) for name in ("n1", "n2")]
        self.first = ModelStore(self.caches[0], self.objects)
        self.second = ModelStore(self.caches[1], self.objects, self)
        unused = [None] * 5
        app = HttpApp(*unused[:3], service_keys().identity("node/n1"), *unused[:2], ServedFiles(self.caches[0]))  # type: ignore[arg-type]
        self.server = HttpServer(app)
        self.is_wrong_node = False

    async def having(self, revision: str) -> list[Objects]:
        assert len(revision) == 64
        status = NodeStatus(
            node_id="n3" if self.is_wrong_node else "n1", pop="lis", address="", http_address=self.server.address
        )
        return [Objects(PeerBackend(status, service_keys().identity("node/n2")))]

    async def publish(self) -> Manifest:
        """Publish a model, and let the first node use it."""
        manifest = await publish(self.objects, NAME, {"config.json": b"{}", "model.safetensors": WEIGHTS})
        await self.first.open(NAME, manifest.revision)
        return manifest

    async def weights(self, manifest: Manifest) -> bytes:
        model = await self.second.open(NAME, manifest.revision)
        return (model.folder / "model.safetensors").read_bytes()


@pytest.fixture
async def pair(short_tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(short_tmp_path)
    await pair.server.open(Address(path=short_tmp_path / "http.sock"))
    yield pair
    await pair.server.close()
    for cache in pair.caches:
        cache.close()
    await pair.objects.close()


def weights_entry(manifest: Manifest) -> str:
    return next(file.sha256 for file in manifest.files if file.path == "model.safetensors")


async def test_model_is_read_from_a_peer_without_the_object_store(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "RANGE_BYTES", 100_000)  # several ranges
    manifest = await pair.publish()
    shutil.rmtree(pair.folder / "objects")
    assert await pair.weights(manifest) == WEIGHTS


async def test_peer_with_wrong_bytes_is_ignored(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    manifest = await pair.publish()
    damaged = pair.folder / "n1" / "blobs" / weights_entry(manifest)
    damaged.write_bytes(b"X" + WEIGHTS[1:])
    assert await pair.weights(manifest) == WEIGHTS
    assert "peer ignored" in caplog.messages


async def test_peer_with_a_file_of_another_size_is_ignored(pair: Pair) -> None:
    manifest = await pair.publish()
    (pair.folder / "n1" / "blobs" / weights_entry(manifest)).write_bytes(WEIGHTS * 2)
    assert await pair.weights(manifest) == WEIGHTS


async def test_peer_that_does_not_accept_this_node_is_ignored(pair: Pair) -> None:
    manifest = await pair.publish()
    pair.is_wrong_node = True  # tokens for n3 are refused by n1
    assert await pair.weights(manifest) == WEIGHTS


async def test_model_that_neither_peers_nor_the_object_store_have_is_unavailable(pair: Pair) -> None:
    manifest = await pair.publish()
    shutil.rmtree(pair.folder / "objects")
    (pair.folder / "n1" / "blobs" / weights_entry(manifest)).unlink()
    with pytest.raises(ModelUnavailable, match="is not in the object store"):
        await pair.weights(manifest)


async def test_files_are_served_to_nodes_only(pair: Pair) -> None:
    manifest = await pair.publish()
    path = f"/files/{blob_key(weights_entry(manifest))}"
    transport = httpx.AsyncHTTPTransport(uds=str(pair.folder / "http.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://node", timeout=PATIENCE_S) as client:

        async def get(sender: str, path: str, bytes_: str = "0-9") -> httpx.Response:
            token = service_keys().identity(sender).sign("node/n1")
            return await client.get(path, headers={"authorization": f"Bearer {token}", "range": f"bytes={bytes_}"})

        response = await get("node/n2", path, "5-9")
        assert (response.status_code, response.content) == (206, WEIGHTS[5:10])
        assert response.headers["content-range"] == f"bytes 5-9/{len(WEIGHTS)}"
        assert (await get("gateway/gateway", path)).status_code == 401
        assert (await client.get(path)).status_code == 401
        assert (await get("node/n2", "/files/blobs/sha256/" + "0" * 64)).status_code == 404
        assert (await get("node/n2", "/files/../lock")).status_code == 404
        assert (await get("node/n2", path, f"{len(WEIGHTS)}-")).status_code == 416


async def test_only_nodes_of_the_pop_that_have_the_model_are_asked(redis_url: str) -> None:
    ephemeral = Ephemeral.connect(redis_url, timeout_s=PATIENCE_S)
    replica = ReplicaStatus(model=NAME, revision="r", state="evicted")
    for node_id, pop, revision, state in (
        ("n1", "lis", "r", "evicted"), ("n2", "lis", "r", "ready"), ("n3", "fra", "r", "ready"),
        ("near", "lis", "other", "ready"), ("far", "lis", "r", "loading"),
    ):  # fmt: skip
        status = NodeStatus(
            node_id=node_id, pop=pop, address="", http_address="unix:///nowhere",
            replicas=(msgspec.structs.replace(replica, revision=revision, state=state),),
        )  # fmt: skip
        await ephemeral.announce(KIND, node_id, msgspec.json.encode(status), 60)
    found = await Peers(ephemeral, service_keys().identity("node/n2"), "n2", "lis").having("r")
    assert len(found) == 1, "n1 alone"
    with pytest.raises(StoreUnavailable, match="node/n1 does not respond"):
        await found[0].stat("blobs/sha256/0")
    await found[0].close()
    await ephemeral.close()
