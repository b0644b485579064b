"""Publishing models through the API: from a hub, from the object store, after a restart, cancelled, and in vain."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from storage.objects import Objects
from tests.catalog.cards import safetensors, write_model_folder
from tests.fakes.hub_server import Cut, HubServer
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking

REPOSITORY = "acme/tiny-llama"
WEIGHT_BYTES = 24 * 1024 * 1024  # the hub library writes pieces of 10 MiB


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    folder = write_model_folder(tmp_path_factory.mktemp("hub") / "repo", weight_bytes=4096)
    with HubServer.of_folder(REPOSITORY, folder) as server:
        noise = bytes(range(256)) * (WEIGHT_BYTES // 256)
        server.files["model.safetensors"] = safetensors({"weight": ("U8", [WEIGHT_BYTES], noise)})
        yield server


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site], hub: HubServer) -> Running:
    site = new_site()
    site.add_node("n1")
    environ = {
        "OBJECTS_URL": f"file://{site.folder / 'objects'}",
        "HF_ENDPOINT": hub.url,
        "HEARTH_PUBLICATION_DIR": str(site.folder / "staging"),
    }
    return Running(site, site.gateway(**environ).start())


@pytest.fixture
def browser(running: Running) -> Iterator[httpx.Client]:
    with running.signed_in("administrator") as browser:
        yield browser


def result(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["result"]


def publish(browser: httpx.Client, name: str, **fields: Any) -> str:
    body = {"source": "hub", "name": name, "repository": REPOSITORY} | fields
    return result(browser.post("/publications", json=body))["id"]


def ended(browser: httpx.Client, publication_id: str) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        found = result(browser.get(f"/publications/{publication_id}"))
        return found if found["finished_at"] else None

    return wait_until_blocking(over, interval_s=0.1)


def audited(running: Running, action: str) -> list[str]:
    path = running.site.database_url.removeprefix("sqlite://")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        query = "SELECT actor FROM audit_entries WHERE action = ? AND account_id = ''"
        return [actor for (actor,) in connection.execute(query, (action,))]


def staged(running: Running) -> list[Path]:
    return [path for path in (running.site.folder / "staging").rglob("*") if path.is_file()]


def test_model_of_a_hub_is_published_with_its_prices(running: Running, browser: httpx.Client):
    name = "@cf/acme/from-hub"
    done = ended(browser, publish(browser, name, prices={"input": 100, "output": 200.5}))
    assert (done["state"], done["repository"], done["prefix"]) == ("done", REPOSITORY, None)
    assert done["done_bytes"] == done["total_bytes"]
    page = result(browser.get(f"/models/{name}"))
    assert [version["revision"] for version in page["versions"]] == [done["revision"]]
    assert {price["unit"]: price["neurons_per_million"] for price in page["prices"]} == {"input": 100, "output": 200.5}
    assert staged(running) == []
    user_id = result(browser.get("/user"))["id"]
    assert user_id in audited(running, "publication.create")
    assert user_id in audited(running, "model.publish")


@pytest.mark.full
def test_progress_is_shown_and_a_restarted_gateway_continues(running: Running, hub: HubServer, browser: httpx.Client):
    hub.cuts["model.safetensors"] = [Cut(22 * 1024 * 1024, "hold")]
    publication_id = publish(browser, "@cf/acme/after-restart")

    def part_done() -> dict[str, Any] | None:
        found = result(browser.get(f"/publications/{publication_id}"))
        return found if found["done_bytes"] > 0 else None

    found = wait_until_blocking(part_done, interval_s=0.1)
    assert (found["state"], found["detail"]) == ("running", "fetching model.safetensors")
    assert found["done_bytes"] < found["total_bytes"]
    num_before = len(hub.downloads_of("model.safetensors"))
    running.gateway.stop()
    hub.release.set()
    running.gateway.start()
    with running.signed_in("administrator") as again:
        assert ended(again, publication_id)["state"] == "done"
        resumed = hub.downloads_of("model.safetensors")[num_before:]
        assert [seen.range for seen in resumed] == [f"bytes={20 * 1024 * 1024}-"]
        assert result(again.get("/models/@cf/acme/after-restart"))["state"] == "available"


def test_cancelled_publication_leaves_no_files(running: Running, hub: HubServer, browser: httpx.Client):
    hub.release.clear()
    hub.cuts["model.safetensors"] = [Cut(11 * 1024 * 1024, "hold")]
    publication_id = publish(browser, "@cf/acme/cancelled")
    wait_until_blocking(lambda: staged(running))
    waiting = publish(browser, "@cf/acme/waiting")
    assert result(browser.delete(f"/publications/{waiting}"))["state"] == "cancelled", "one runs at a time"
    assert result(browser.delete(f"/publications/{publication_id}"))["state"] in ("running", "cancelled")
    assert ended(browser, publication_id)["state"] == "cancelled"
    hub.release.set()
    assert staged(running) == []
    assert browser.get("/models/@cf/acme/cancelled").status_code == 400
    assert result(browser.delete(f"/publications/{publication_id}"))["state"] == "cancelled"
    assert len(audited(running, "publication.cancel")) == 2


@pytest.mark.full
def test_model_in_the_object_store_is_published(running: Running, browser: httpx.Client, tmp_path: Path):
    async def upload() -> None:
        objects = Objects.connect(f"file://{running.site.folder / 'objects'}")
        folder = write_model_folder(tmp_path / "model")
        for path in folder.iterdir():
            await objects.put_file(f"uploads/tiny/{path.name}", path)
        await objects.close()

    asyncio.run(upload())
    body = {"source": "bucket", "name": "@cf/acme/from-bucket", "prefix": "uploads/tiny/"}
    done = ended(browser, result(browser.post("/publications", json=body))["id"])
    assert (done["state"], done["prefix"], done["detail"]) == ("done", "uploads/tiny", "published")
    assert done["done_bytes"] == done["total_bytes"] > 0
    assert staged(running) == []
    empty = ended(browser, result(browser.post("/publications", json=body | {"prefix": "uploads/none"}))["id"])
    assert (empty["state"], "no model files below uploads/none/" in empty["detail"]) == ("failed", True)


@pytest.mark.full
def test_failure_is_shown_with_its_reason(browser: httpx.Client):
    unknown = ended(browser, publish(browser, "@cf/acme/unknown", repository="acme/unknown"))
    assert unknown["state"] == "failed"
    assert "acme/unknown" in unknown["detail"]
    builtin = ended(browser, publish(browser, "@cf/hearth/spark"))
    assert (builtin["state"], "built in" in builtin["detail"]) == ("failed", True)
    rows = browser.get("/publications", params={"per_page": 2}).json()
    assert [row["id"] for row in rows["result"]] == [builtin["id"], unknown["id"]], "the newest is first"
    assert browser.get("/publications/unknown").status_code == 404


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "tiny"}, "name: a model id has the form"),
        ({"repository": None}, "repository must be"),
        ({"repository": "../../etc"}, "repository must be"),
        ({"prefix": "uploads"}, "prefix is for the source bucket"),
        ({"source": "bucket"}, "repository is for the source hub"),
        ({"source": "bucket", "repository": None, "prefix": "../up"}, "prefix must be"),
        ({"source": "disk"}, "source must be"),
        ({"prices": {"input": -1, "output": 0}}, "prices/input must be"),
    ],
)
def test_invalid_publication_is_refused_by_name(browser: httpx.Client, change: dict, says: str):
    body = {"source": "hub", "name": "@cf/acme/x", "repository": REPOSITORY} | change
    refused = browser.post("/publications", json=body)
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (400, 1004)
    assert says in refused.json()["errors"][0]["message"]
