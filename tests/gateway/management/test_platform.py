"""The platform's health, settings, metric summary and audit log, for platform roles."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import pytest

from tests.gateway.browser_session import session_headers
from tests.gateway.process import CACHE_SECRET, PARROT, PEPPER
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1")
    gateway = site.gateway(
        HEARTH_POP="lis", HEARTH_AUDIT_HEADS=str(site.folder / "audit.jsonl"),
        OBJECTS_URL=f"file://{site.folder / 'objects'}",
    ).start()  # fmt: skip
    return Running(site, gateway)


@pytest.fixture
def viewer(running: Running, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    headers = session_headers(running, "viewer", email=f"{request.node.name[:40]}@example.org")
    with httpx.Client(base_url=running.gateway.base_url, headers=headers, timeout=60) as client:
        yield client


def test_settings_show_their_source_and_no_secret(viewer: httpx.Client):
    response = viewer.get("settings").raise_for_status()
    settings = {setting["name"]: setting for setting in response.json()["result"]}
    pop = settings["HEARTH_POP"]
    assert (pop["value"], pop["default"], pop["source"], pop["is_secret"]) == ("lis", "local", "environment", False)
    assert settings["HEARTH_MAX_CALLS"]["source"] == "default"
    assert settings["DATABASE_URL"]["default"] is None
    assert settings["HEARTH_TOKEN_PEPPER"] | {"help": ""} == {
        "name": "HEARTH_TOKEN_PEPPER", "value": "********", "default": None, "source": "environment",
        "is_secret": True, "help": "",
    }  # fmt: skip
    assert PEPPER.hex() not in response.text
    assert CACHE_SECRET.hex() not in response.text
    assert all(setting["help"] for setting in settings.values())


def test_health_names_stores_gateways_and_nodes(running: Running, viewer: httpx.Client):
    with running.beside(HEARTH_POP="fra"):
        wait_until_blocking(lambda: len(viewer.get("health").json()["result"]["gateways"]) == 2)
        health = viewer.get("health").raise_for_status().json()["result"]
    assert health["is_ready"]
    assert {gateway["pop"] for gateway in health["gateways"]} == {"lis", "fra"}
    assert health["gateway_id"] in {gateway["gateway_id"] for gateway in health["gateways"]}
    assert all(gateway["version"] == health["version"] for gateway in health["gateways"])
    assert (health["database"]["ok"], health["database"]["kind"]) == (True, "sqlite")
    assert health["database"]["migration"] == health["database"]["expected_migration"]
    assert health["redis"]["ok"]
    assert health["object_store"]["ok"]
    assert [(node["node_id"], node["state"]) for node in health["nodes"]] == [("n1", "ready")]


def test_health_reports_an_old_schema(running: Running, viewer: httpx.Client):
    path = running.site.database_url.removeprefix("sqlite://")
    with closing(sqlite3.connect(path)) as connection, connection:
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    database = viewer.get("health").json()["result"]["database"]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    assert not database["ok"]
    assert "hearth migrate" in database["detail"]


def test_audit_log_of_the_platform_has_all_accounts_and_is_verified(running: Running, viewer: httpx.Client):
    whole = viewer.get("audit_logs", params={"per_page": 1000}).raise_for_status().json()
    owners = {row["owner"]["id"] for row in whole["result"]}
    assert owners >= {running.tenants.account_id, running.tenants.other_account_id}
    sequences = [row["sequence"] for row in whole["result"]]
    assert sequences == sorted(sequences, reverse=True)
    only = viewer.get("audit_logs", params={"account_id": running.tenants.other_account_id}).json()["result"]
    assert {row["owner"]["id"] for row in only} == {running.tenants.other_account_id}
    verified = viewer.get("audit_logs/verification").raise_for_status().json()["result"]
    assert verified["ok"], verified
    assert verified["num_entries"] >= len(sequences)
    assert verified["detail"] == ""


def test_summary_counts_a_finished_call(running: Running, viewer: httpx.Client):
    url = f"{running.account_url}/ai/run/{PARROT}"
    response = httpx.post(url, json={"prompt": "x"}, headers=running.headers(), timeout=60).raise_for_status()
    running.site.usage_row(response.headers["x-hearth-request-id"])

    def totals(client: httpx.Client, path: str) -> dict:
        result: dict = client.get(path).raise_for_status().json()["result"]
        return result

    wait_until_blocking(lambda: totals(viewer, "metrics/summary")["totals"]["calls"])
    with httpx.Client(base_url=running.account_url, headers=running.headers("keeper"), timeout=60) as keeper:
        found = totals(keeper, "ai/metrics/summary")
        assert found["totals"]["calls"] >= 1
        assert PARROT in found["ready_models"]
        assert keeper.get("ai/metrics/summary?since=2020-01-01").status_code == 400
        assert keeper.get("ai/metrics/summary?since=2026-01-02&until=2026-01-01").status_code == 400
    other = totals(viewer, f"metrics/summary?account_id={running.tenants.other_account_id}")
    assert other["totals"]["calls"] == 0
