"""Routes for people with a platform role: accounts' operation, disabled models, aliases, deprecations, model pages,
and the usage of all accounts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.gateway.process import ALIAS, CHATTY, PARROT
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def browser(running: Running) -> Iterator[httpx.Client]:
    with running.signed_in("administrator") as browser:
        yield browser


def result(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["result"]


def error(response: httpx.Response) -> tuple[int, int]:
    return response.status_code, response.json()["errors"][0]["code"]


def new_account(browser: httpx.Client) -> str:
    return result(browser.post("/accounts", json={"name": "Shop", "type": "standard"}))["id"]


def run(running: Running, model: str = PARROT, token: str = "good") -> httpx.Response:
    url = f"{running.account_url}/ai/run/{model}"
    return httpx.post(url, json={"messages": HELLO}, headers=running.headers(token), timeout=60)


def audit_actions(running: Running) -> list[str]:
    path = running.site.database_url.removeprefix("sqlite://")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return [action for (action,) in connection.execute("SELECT action FROM audit_entries ORDER BY sequence")]


def test_platform_administrator_creates_an_account_and_is_its_member(browser: httpx.Client):
    account_id = new_account(browser)
    [member] = result(browser.get(f"/accounts/{account_id}/members"))
    assert member["user"]["id"] == result(browser.get("/user"))["id"]
    assert member["roles"][0]["name"] == "Administrator"


def test_operation_of_an_account_is_changed_and_takes_effect(running: Running, browser: httpx.Client):
    url = f"/accounts/{running.tenants.other_account_id}/operation"
    read = result(browser.get(url))
    assert (read["status"], read["plan"], read["region"]) == ("active", "paid", None)
    wanted = {name: read[name] for name in ("status", "plan", "limits", "retention", "region")}
    call = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/run/{PARROT}"

    def status() -> int:
        return httpx.post(call, json={"prompt": "x"}, headers=running.headers("other"), timeout=60).status_code

    assert status() == 200
    blocked = result(browser.put(url, json=wanted | {"status": "blocked", "limits": "account=5/60"}))
    assert (blocked["status"], blocked["limits"]) == ("blocked", "account=5/60")
    wait_until_blocking(lambda: status() == 403)
    region = {"countries": ["DE"], "jurisdictions": ["eu"]}
    assert result(browser.put(url, json=wanted | {"region": region}))["region"] == region
    assert result(browser.put(url, json=wanted))["version"] == read["version"]
    wait_until_blocking(lambda: status() == 200)
    assert audit_actions(running).count("account.operation") == 3


def test_second_of_two_operators_gets_a_conflict_and_nothing_is_lost(browser: httpx.Client):
    url = f"/accounts/{new_account(browser)}/operation"
    first = browser.get(url)
    wanted = {name: result(first)[name] for name in ("status", "plan", "limits", "retention", "region")}
    stale = {"if-match": first.headers["etag"]}
    changed = browser.put(url, json=wanted | {"plan": "free"}, headers=stale)
    assert changed.headers["etag"] == f'"{result(changed)["version"]}"'
    assert error(browser.put(url, json=wanted | {"limits": "account=1/60"}, headers=stale)) == (412, 11004)
    assert (result(browser.get(url))["plan"], result(browser.get(url))["limits"]) == ("free", "")
    current = {"if-match": changed.headers["etag"]}
    assert result(browser.put(url, json=wanted | {"plan": "enterprise"}, headers=current))["plan"] == "enterprise"


def test_second_change_of_an_account_or_a_token_gets_a_conflict(browser: httpx.Client):
    account = f"/accounts/{new_account(browser)}"
    group = result(browser.get(f"{account}/tokens/permission_groups"))[0]["id"]
    resources = {f"com.cloudflare.api.account.{account.removeprefix('/accounts/')}": "*"}
    policy = {"effect": "allow", "permission_groups": [{"id": group}], "resources": resources}
    made = result(browser.post(f"{account}/tokens", json={"name": "laptop", "policies": [policy]}))
    for url, rest in ((account, {}), (f"{account}/tokens/{made['id']}", {"policies": [policy]})):
        read = {"if-match": browser.get(url).headers["etag"]}
        first = browser.put(url, json={"name": "first", **rest}, headers=read)
        assert result(first)["name"] == "first"
        assert error(browser.put(url, json={"name": "second", **rest}, headers=read)) == (412, 11004)
        assert result(browser.get(url))["name"] == "first"
        current = {"if-match": first.headers["etag"]}
        assert result(browser.put(url, json={"name": "second", **rest}, headers=current))["name"] == "second"
        assert result(browser.put(url, json={"name": "third", **rest}))["name"] == "third"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"limits": "account"}, "limits"),
        ({"plan": "gold"}, "plan must be enterprise, free or paid"),
        ({"region": {"countries": ["Germany"]}}, "region"),
        ({"region": {}}, "region"),
        ({"status": None}, "status"),
    ],
)
def test_invalid_operation_is_refused_by_name(browser: httpx.Client, change: dict, says: str):
    url = f"/accounts/{new_account(browser)}/operation"
    wanted = {"status": "active", "plan": "paid", "limits": "", "retention": "standard", "region": None}
    refused = browser.put(url, json=wanted | change)
    assert error(refused) == (400, 1004)
    assert says in refused.json()["errors"][0]["message"]
    assert error(browser.get(f"/accounts/{'f' * 32}/operation")) == (404, 7003)


def test_disabled_model_is_refused_for_the_account_and_runs_for_others(running: Running, browser: httpx.Client):
    url = f"/accounts/{running.tenants.account_id}/ai/models/disabled"
    assert run(running).status_code == 200
    assert result(browser.put(f"{url}/{PARROT}")) == {"model": PARROT}
    try:
        assert result(browser.get(url)) == [{"model": PARROT}]
        refused = wait_until_blocking(lambda: (found := run(running)).status_code == 403 and found)
        assert error(refused) == (403, 5018)
        assert error(run(running, ALIAS)) == (403, 5018), "an alias of the model is disabled as well"
        assert run(running, CHATTY).status_code == 200
        other = f"{running.gateway.base_url}/accounts/{running.tenants.other_account_id}/ai/run/{PARROT}"
        assert httpx.post(other, json={"prompt": "x"}, headers=running.headers("other")).status_code == 200
    finally:
        assert result(browser.delete(f"{url}/{PARROT}")) == {"model": PARROT}
    wait_until_blocking(lambda: run(running).status_code == 200)
    assert error(browser.put(f"{url}/@cf/no/model")) == (400, 5007)
    assert {"account.disable_model", "account.enable_model"} <= set(audit_actions(running))


def test_alias_serves_at_once_and_guards_against_stale_changes(running: Running, browser: httpx.Client):
    name = "@cf/shop/assistant"
    made = browser.put(f"/aliases/{name}", json={"target": PARROT})
    assert result(made)["target"] == PARROT
    assert run(running, name).status_code == 200
    first = {"if-match": made.headers["etag"]}
    assert result(browser.put(f"/aliases/{name}", json={"target": CHATTY}, headers=first))["target"] == CHATTY
    assert error(browser.put(f"/aliases/{name}", json={"target": PARROT}, headers=first)) == (412, 11004)
    assert error(browser.delete(f"/aliases/{name}", headers=first)) == (412, 11004)
    rows = result(browser.get("/aliases", params={"per_page": 1000}))
    assert {"name": name, "target": CHATTY}.items() <= next(row for row in rows if row["name"] == name).items()
    assert result(browser.delete(f"/aliases/{name}")) == {"name": name}
    assert error(browser.delete(f"/aliases/{name}")) == (400, 1004)
    for target, says in ((name, "cycle"), ("@cf/no/model", "there is no model"), ("x", "must be a model id")):
        refused = browser.put(f"/aliases/{name}", json={"target": target})
        assert error(refused) == (400, 1004)
        assert says in refused.json()["errors"][0]["message"]
    assert {"model.alias", "model.alias_removed"} <= set(audit_actions(running))


def test_deprecated_model_is_refused_from_its_day_on(running: Running, browser: httpx.Client):
    url = f"/deprecations/{PARROT}"
    future = browser.put(url, json={"at": "2999-01-31", "reason": "too small", "successor": CHATTY})
    try:
        assert result(future)["at"] == "2999-01-31"
        assert run(running).status_code == 200, "until the day, calls run"
        page = result(browser.get(f"/models/{PARROT}"))
        assert (page["state"], page["deprecates_on"], page["successor"]) == ("available", "2999-01-31", CHATTY)
        assert page["deprecation"]["reason"] == "too small"
        stale = {"if-match": future.headers["etag"]}
        assert result(browser.put(url, json={"at": "2020-01-31", "successor": CHATTY}, headers=stale))
        assert error(browser.put(url, json={"at": "2030-01-31"}, headers=stale)) == (412, 11004)
        refused = run(running)
        assert error(refused) == (410, 5028)
        assert CHATTY in refused.json()["errors"][0]["message"]
        assert [row["model"] for row in result(browser.get("/deprecations"))] == [PARROT]
    finally:
        assert result(browser.delete(url)) == {"name": PARROT}
    assert run(running).status_code == 200
    assert error(browser.delete(url)) == (404, 7003)
    assert error(browser.put(url, json={"at": "soon"})) == (400, 1004)
    assert error(browser.put(url, json={"at": "2030-01-01", "successor": PARROT})) == (400, 1004)
    assert {"model.deprecate", "model.undeprecate"} <= set(audit_actions(running))


def test_model_page_shows_versions_replicas_aliases_and_prices(browser: httpx.Client):
    page = result(browser.get(f"/models/{PARROT}"))
    [version] = [version for version in page["versions"] if version["is_current"]]
    assert version["published_at"]
    assert {replica["node_id"] for replica in page["replicas"]} == {"n1", "n2"}
    assert all(replica["is_current"] for replica in page["replicas"])
    assert ALIAS in page["aliases"]
    assert {price["unit"] for price in page["prices"]} >= {"input", "output"}
    assert page["schema_url"] == f"/ai/models/schema?model={PARROT}"
    assert error(browser.get("/models/@cf/no/model")) == (400, 5007)


def test_page_of_a_listed_model_shows_that_it_is_not_installed(browser: httpx.Client):
    rows = result(browser.get("/models/@cf/meta/llama-3.2-1b-instruct"))
    assert (rows["state"], rows["versions"], rows["replicas"]) == ("listed", [], [])


def test_usage_of_all_accounts_is_summed_and_listed(running: Running, browser: httpx.Client):
    ids = []
    for token, account_id in (("good", running.tenants.account_id), ("other", running.tenants.other_account_id)):
        url = f"{running.gateway.base_url}/accounts/{account_id}/ai/run/{PARROT}"
        response = httpx.post(url, json={"prompt": "sums"}, headers=running.headers(token), timeout=60)
        ids.append(response.headers["cf-ai-req-id"])

    def listed(**query: Any) -> list[dict]:
        return result(browser.get("/usage/calls", params={"limit": 1000} | query))

    wait_until_blocking(lambda: set(ids) <= {call["request_id"] for call in listed()})
    started = [call["started_at"] for call in listed()]
    assert started == sorted(started, reverse=True)
    other = listed(account_id=running.tenants.other_account_id)
    assert {call["account_id"] for call in other} == {running.tenants.other_account_id}
    assert listed(min_duration_ms=1e9) == []
    assert listed(until="2020-01-01") == []
    rest = listed(before=ids[1])
    assert ids[0] in {call["request_id"] for call in rest}
    assert ids[1] not in {call["request_id"] for call in rest}
    sums = result(browser.get("/usage"))["sums"]
    assert {running.tenants.account_id, running.tenants.other_account_id} <= {row["account"] for row in sums}
    by_model = result(browser.get("/usage", params={"by": "model", "account_id": running.tenants.other_account_id}))
    assert PARROT in {row["model"] for row in by_model["sums"]}
    export = browser.get("/usage/export")
    assert all(request_id in export.text for request_id in ids)
    assert error(browser.get("/usage", params={"account_id": "x"})) == (400, 3003)


def test_viewer_reads_and_changes_nothing(running: Running):
    with running.signed_in("viewer") as browser:
        assert result(browser.get("/usage"))
        assert error(browser.put(f"/aliases/{ALIAS}", json={"target": CHATTY})) == (403, 10000)
