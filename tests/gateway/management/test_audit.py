"""The audit log route, and the file of chain heads outside the database."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tenants.audit import audit_heads
from tests.gateway.process import PEPPER
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1")
    return Running(site, site.gateway(HEARTH_AUDIT_HEADS=str(site.folder / "heads" / "audit.jsonl")).start())


def test_entries_are_listed_newest_first_in_pages_and_by_action(running: Running):
    url = f"{running.account_url}/audit_logs"
    with httpx.Client(headers=running.headers("keeper"), timeout=60) as client:
        whole = client.get(url).json()
        rows, total = whole["result"], whole["result_info"]["total_count"]
        assert len(rows) == total >= 10
        assert [row["sequence"] for row in rows] == sorted((row["sequence"] for row in rows), reverse=True)
        first = rows[-1]
        assert first["action"] == {"type": "account.create", "result": True}
        assert (first["actor"], first["resource"]["type"]) == ({"id": "cli", "type": "cli"}, "account")
        assert len(first["digest"]) == 64
        assert client.get(url, params={"page": 2, "per_page": total - 1}).json()["result"] == [first]
        assert client.get(url, params={"page": 9}).json()["result"] == []
        kinds = client.get(url, params={"action.type": "api_token"}).json()["result"]
        assert {row["action"]["type"] for row in kinds} >= {"api_token.create", "api_token.revoke"}
        assert all(row["action"]["type"].startswith("api_token.") for row in kinds)
        (revoked,) = client.get(url, params={"action.type": "api_token.revoke"}).json()["result"]
        assert revoked["resource"]["id"] == running.tenants.token_ids["revoked"]
        assert client.get(url, params={"action.type": "x" * 65}).status_code == 400
        renamed = client.put(running.account_url, json={"name": "main"})
        assert renamed.status_code == 200
        assert client.get(url, params={"per_page": 1}).json()["result"][0]["actor"]["type"] == "user"
    for name in ("good", "other"):
        assert httpx.get(url, headers=running.headers(name)).status_code == 403


def test_chain_head_is_recorded_outside_the_database(running: Running):
    path = running.site.folder / "heads" / "audit.jsonl"
    wait_until_blocking(lambda: path.exists() and audit_heads.read_notes(path))
    (noted,) = audit_heads.read_notes(path)
    assert noted.is_proven(audit_heads.key_from(PEPPER))
    assert noted.sequence >= 10
    assert path.stat().st_mode & 0o077 == 0
