"""Residency and retention through the gateway: where calls run, when they are refused, and what is stored of them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench import figures
from storage.database import Database
from tenants import accounts
from tenants.residency import parse_rule
from tests.gateway.process import PARROT
from tests.gateway.site import READ, Running, Site
from tests.gateway.test_token_dumps import Holding, dump
from tests.waiting import wait_until_blocking

MARKER = "marigold-7431-of-the-quiet-valley"
LOCATIONS = "fra=DE,par=FR,iad=US:fedramp"


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    """A gateway in Frankfurt with nodes in Frankfurt, Paris and Virginia, and one node that claims Frankfurt
    without proof."""
    site = new_site()
    for pop in ("fra", "par", "iad"):
        site.add_node(pop, pop=pop, proves_pop=pop)
    site.add_node("liar", pop="fra")
    gateway = site.gateway(HEARTH_POP="fra", HEARTH_LOCATIONS=LOCATIONS).start()
    return Running(site, gateway)


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        yield client


def change(running: Running, **rules: Any) -> None:
    """Change the account as the operator, and wait until the gateway has received the change."""

    async def write() -> None:
        database = Database.connect(running.site.database_url)
        account_id = running.tenants.account_id
        if "region" in rules:
            region = parse_rule(rules["region"]) if rules["region"] else None
            await accounts.set_region(database, account_id, region)
        if "retention" in rules:
            await accounts.set_retention(database, account_id, rules["retention"])
        await database.close()

    asyncio.run(write())


def ask(running: Running, client: httpx.Client, region: str = "", **body: Any) -> httpx.Response:
    headers = {"x-hearth-region": region} if region else {}
    body = {"prompt": MARKER} | body
    return client.post(f"{running.account_url}/ai/run/{PARROT}", json=body, headers=headers)


def nodes_called(running: Running, client: httpx.Client, region: str, num: int = 12) -> set[str]:
    found = set()
    for number in range(num):
        response = ask(running, client, region, prompt=f"{number} {MARKER}")
        assert response.status_code == 200, response.text
        request_id = response.headers["cf-ai-req-id"]
        found |= {name for name, node in running.site.nodes.items() if request_id in _ids(node)}
    return found


def _ids(node: Any) -> set[str]:
    return {execute.request_id for execute in node.executes}


def code_of(response: httpx.Response) -> tuple[int, int]:
    return response.status_code, response.json()["errors"][0]["code"]


def test_call_runs_only_on_nodes_with_a_verified_location_in_its_region(running: Running, client: httpx.Client):
    assert nodes_called(running, client, "DE") == {"fra"}
    assert nodes_called(running, client, "eu") <= {"fra", "par"}
    running.site.nodes["fra"].state = "draining"
    running.site.nodes["fra"].publish()
    try:
        wait_until_blocking(lambda: ask(running, client, "DE").status_code == 429)
        assert nodes_called(running, client, "eu", 3) == {"par"}
        refused = ask(running, client, "DE")
        assert code_of(refused) == (429, 3040)
        assert "retry-after" in refused.headers
    finally:
        running.site.nodes["fra"].state = "ready"
        running.site.nodes["fra"].publish()
    wait_until_blocking(lambda: ask(running, client, "DE").status_code == 200)


def test_gateway_outside_the_region_refuses_before_reading_the_body(running: Running, client: httpx.Client):
    before = running.site.num_executes
    assert code_of(ask(running, client, "US")) == (429, 3040)
    assert code_of(ask(running, client, "fedramp,CH")) == (429, 3040)
    page = {"files": ("a.html", MARKER, "text/html")}
    outside = {"x-hearth-region": "US"}
    assert code_of(client.post(f"{running.account_url}/ai/tomarkdown", files=page, headers=outside)) == (429, 3040)
    assert running.site.num_executes == before
    for text in ("", "de-DE!", "XYZ", "a" * 600, "é"):
        response = client.post(f"{running.account_url}/ai/run/{PARROT}", json={"prompt": "x"},
                             headers=[(b"x-hearth-region", text.encode())])  # fmt: skip
        assert code_of(response) == (400, 3003), text


def test_account_residency_rule_applies_to_every_call_and_can_only_be_narrowed(running: Running, client: httpx.Client):
    change(running, region="US")
    try:
        wait_until_blocking(lambda: ask(running, client).status_code == 429)
        assert code_of(ask(running, client, "DE")) == (429, 3040)
        change(running, region="DE,FR")
        wait_until_blocking(lambda: ask(running, client).status_code == 200)
        assert nodes_called(running, client, "") <= {"fra", "par"}
        assert code_of(ask(running, client, "FR,US")) == (429, 3040)
        run = f"{running.account_url}/ai/run/{PARROT}?queueRequest=true"
        assert code_of(client.post(run, json={"requests": [{"prompt": MARKER}]})) == (400, 5006)
    finally:
        change(running, region="")


def test_token_residency_rule_narrows_only_calls_with_that_token(running: Running, client: httpx.Client):
    keeper = running.headers("keeper")
    tokens = f"{running.account_url}/tokens"
    groups = httpx.get(tokens + "/permission_groups", headers=keeper, timeout=60).json()["result"]
    group = next(group for group in groups if group["name"] == READ)
    resources = {f"com.cloudflare.api.account.{running.tenants.account_id}": "*"}
    policy = {"effect": "allow", "permission_groups": [{"id": group["id"]}], "resources": resources}
    body = {"name": "narrow", "policies": [policy], "region": {"countries": ["DE"], "jurisdictions": []}}
    made = httpx.post(tokens, json=body, headers=keeper, timeout=60).json()["result"]
    assert made["region"]["countries"] == ["DE"]
    with httpx.Client(headers={"Authorization": f"Bearer {made['value']}"}, timeout=60) as narrow:
        assert nodes_called(running, narrow, "") == {"fra"}
        assert code_of(ask(running, narrow, "FR")) == (429, 3040)
    assert ask(running, client, "eu").status_code == 200


def test_api_returns_and_updates_account_residency_rules(running: Running):
    keeper = running.headers("keeper")
    with httpx.Client(headers=keeper, timeout=60) as client:
        shown = client.get(running.account_url).json()["result"]
        assert not shown["settings"].keys() & {"region", "retention"}
        region = {"countries": ["DE"], "jurisdictions": ["eu"]}
        body = {"name": "main", "settings": {"region": region, "retention": "zero"}}
        changed = client.put(running.account_url, json=body).json()["result"]["settings"]
        assert (changed["region"], changed["retention"]) == (region, "zero")
        settings = client.put(running.account_url, json={"name": "main"}).json()["result"]["settings"]
        assert (settings["region"], settings["retention"]) == (region, "zero")
        for bad in ({"region": "DE"}, {"region": {"countries": ["de"]}}, {"retention": "never"}, {"retention": None}):
            response = client.put(running.account_url, json={"name": "main", "settings": bad})
            assert code_of(response) == (400, 1004), bad
        body = {"name": "main", "settings": {"region": None, "retention": "standard"}}
        shown = client.put(running.account_url, json=body).json()["result"]["settings"]
        assert not shown.keys() & {"region", "retention"}


def test_zero_retention_call_stores_no_content(running: Running, client: httpx.Client):
    """The marker is in the request and the response, but in no file, row, log line or Redis value of the gateway.
    No two calls share a cache."""
    site, url = running.site, f"{running.account_url}/ai/v1/responses"

    def respond(**body: Any) -> httpx.Response:
        return client.post(url, json={"model": PARROT, "input": MARKER} | body)

    def stores() -> bool:
        response = respond(store=True, input="x")
        found = client.get(f"{url}/{response.json()['id']}")
        assert found.status_code == (200 if response.json()["store"] else 404)
        return response.json()["store"]

    wait_until_blocking(stores)  # whatever another test said of the account
    change(running, retention="zero")
    try:
        wait_until_blocking(lambda: not stores())
        first = respond()
        gone = client.get(f"{url}/{first.json()['id']}")
        assert gone.status_code == 404
        assert gone.json()["error"]["message"].endswith(": this account has zero data retention")
        later = respond(background=True)
        assert later.status_code == 400
        assert "'background' is not supported: this account has zero data retention" in later.text
        again = respond(previous_response_id=first.json()["id"])
        assert again.status_code == 400
        assert "this account has zero data retention" in again.text
        calls = [site.execute_of(ask(running, client)) for _ in range(2)]
        assert all(call.is_ephemeral for call in calls)
        assert calls[0].namespace != calls[1].namespace
        page = {"files": ("a.html", f"<p>{MARKER}", "text/html")}
        assert MARKER in client.post(f"{running.account_url}/ai/tomarkdown", files=page).text
        assert ask(running, client, prompt=5).status_code == 400
        run = f"{running.account_url}/ai/run/{PARROT}"
        queued = client.post(run + "?queueRequest=true", json={"requests": [{"prompt": MARKER}]})
        assert code_of(queued) == (400, 5006)
        assert "this account has zero data retention" in queued.text
        for status in (200, 409):  # the key is spent, since the answer was not settings
            keyed = client.post(run, json={"prompt": MARKER}, headers={"idempotency-key": MARKER})
            assert keyed.status_code == status, keyed.text
    finally:
        change(running, retention="standard")
    wanted = [MARKER.encode(), base64.b64encode(MARKER.encode())[4:-4], MARKER.encode().hex().encode()]
    held = list(dump(Holding(running)))
    kinds = {where.split()[0].split("/")[0] for where, _ in held}
    assert {"hearth.db", "table", "redis", "gateway-0"} <= kinds, "everything was looked into"
    assert [where for where, content in held if any(form in content for form in wanted)] == []
    figure = f"0 hits in {len(held)} files, rows, keys and lists of Redis"
    figures.record("T20", figure, f"pytest {Path(__file__).name}")
    wait_until_blocking(lambda: not site.execute_of(ask(running, client)).is_ephemeral)
