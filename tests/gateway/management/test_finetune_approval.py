"""With HEARTH_FINETUNE_APPROVAL, a public finetune is usable by other accounts after an operator's approval."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator

import httpx
import pytest

from storage.ephemeral import Ephemeral
from tenants.credentials.web_sessions import SessionOwner, WebSessions
from tests.catalog.adapters import weights_bytes
from tests.gateway.management.test_finetunes import code_of, complete, create, upload
from tests.gateway.process import CACHE_SECRET, HANDY
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking

PROVIDER = {
    "HEARTH_OIDC_ISSUER": "https://login.example",
    "HEARTH_OIDC_CLIENT_ID": "hearth",
    "HEARTH_OIDC_REDIRECT_URL": "https://hearth.example/admin/callback",
    "HEARTH_OIDC_ROLES": "x=viewer",
}


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1")
    environ = {"OBJECTS_URL": f"file://{site.folder / 'objects'}", "HEARTH_FINETUNE_APPROVAL": "true", **PROVIDER}
    return Running(site, site.gateway(**environ).start())


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(headers=running.headers("write"), timeout=60) as client:
        yield client


async def sign_in(redis_url: str) -> dict[str, str]:
    """Return the headers of an operator's session."""
    ephemeral = Ephemeral.connect(redis_url)
    try:
        sessions = WebSessions(ephemeral, CACHE_SECRET)
        cookie = await sessions.open(SessionOwner("operator:1", "Ann", role="administrator"))
        session = await sessions.find(cookie)
        assert session is not None
        return {
            "host": "hearth.example",
            "cookie": f"__Host-hearth-session={cookie}",
            "sec-fetch-site": "same-origin",
            "x-hearth-csrf": session.csrf_token,
        }
    finally:
        await ephemeral.close()


def test_public_finetune_needs_approval_of_its_present_files(running: Running, client: httpx.Client):
    created = complete(running, client, "for-all", public=True)
    assert created["approved"] is False
    theirs = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai"
    approval = f"{running.gateway.base_url}/finetunes/{created['id']}/approval"
    headers = asyncio.run(sign_in(running.site.redis.url))
    with (
        httpx.Client(headers=running.headers("other"), timeout=60) as other,
        httpx.Client(headers=headers, timeout=60) as operator,
    ):

        def is_usable(expected: bool = True) -> bool:
            """Return True if the finetune is (or is not) both listed and usable. Gateways cache it for a second."""
            response = other.post(f"{theirs}/run/{HANDY}", json={"prompt": "x", "lora": created["id"]})
            listed = [row["id"] for row in other.get(f"{theirs}/finetunes/public").json()["result"]]
            return [created["id"] in listed, response.status_code == 200] == [expected] * 2

        assert is_usable(False)
        own = client.post(f"{running.account_url}/ai/run/{HANDY}", json={"prompt": "x", "lora": "for-all"})
        assert own.status_code == 200, "the owner needs no approval"
        assert code_of(client.put(approval)) == (403, 10000)
        rows = operator.get(f"{running.gateway.base_url}/finetunes").json()["result"]
        assert [(row["id"], row["owner"], row["approved"]) for row in rows] == [
            (created["id"], running.tenants.account_id, False)
        ]
        assert operator.put(approval).json()["result"]["approved"] is True
        wait_until_blocking(is_usable)
        changed = upload(running, client, created["id"], "adapter_model.safetensors", weights_bytes(seed=5))
        assert changed.status_code == 200
        wait_until_blocking(lambda: is_usable(False))
        assert operator.put(approval).status_code == 200
        wait_until_blocking(is_usable)
        assert operator.delete(approval).json()["result"]["approved"] is False
        wait_until_blocking(lambda: is_usable(False))

        private = create(running, client, "private")
        refused = operator.put(f"{running.gateway.base_url}/finetunes/{private['id']}/approval")
        assert code_of(refused) == (400, 1004)
        assert code_of(operator.put(f"{running.gateway.base_url}/finetunes/none/approval")) == (404, 7003)
    path = running.site.database_url.removeprefix("sqlite://")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        query = (
            "SELECT action, actor FROM audit_entries WHERE subject_id = ? AND action LIKE '%approv%' ORDER BY sequence"
        )
        entries = connection.execute(query, (created["id"],)).fetchall()
    actions = ["finetune.approve", "finetune.approve", "finetune.withdraw_approval"]
    assert entries == [(action, "operator:1") for action in actions]
