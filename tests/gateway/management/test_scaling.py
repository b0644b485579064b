"""The routes of autoscaling, and the autoscaler with gateways, nodes and a Redis: plans, rules, audit, lease."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import httpx
import jsonschema_rs
import pytest

from tests.gateway.browser_session import session_headers
from tests.gateway.process import PARROT, VECTORS, GatewayProcess
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1", pop="fra")
    site.add_node("n2", pop="iad")
    gateway = site.gateway(HEARTH_POP="fra").start()
    wait_until_blocking(lambda: gateway.metric("hearth_nodes_alive") == 2)
    return Running(site, gateway)


@pytest.fixture(scope="module")
def operator(running: Running) -> Iterator[httpx.Client]:
    headers = session_headers(running, "administrator", email="op@example.org", account_role="administrator")
    with httpx.Client(base_url=running.gateway.base_url, headers=headers, timeout=60) as client:
        yield client


def result(response: httpx.Response):
    return response.raise_for_status().json()["result"]


def audited(client: httpx.Client, action: str) -> list[tuple[str, str, str]]:
    rows = result(client.get("audit_logs", params={"action.type": action}))
    return [(row["action"]["type"], row["resource"]["id"], row["metadata"]["detail"]) for row in rows]


def test_plan_shows_the_replicas_with_reasons_and_changes_nothing(running: Running, operator: httpx.Client):
    before = len(running.site.nodes["n1"].changes)
    plan = result(operator.get("scaling/plan"))
    assert (plan["is_on"], plan["holder"], plan["applied_at"]) == (False, None, None)
    (target,) = (each for each in plan["targets"] if (each["model"], each["pop"]) == (PARROT, "fra"))
    assert target["num_current"] == target["num_replicas"] == 1
    assert "no call known" in target["reason"]
    assert len(running.site.nodes["n1"].changes) == before


def test_overrides_are_stored_planned_and_audited(operator: httpx.Client):
    path = f"scaling/overrides/{VECTORS}"
    body = {"pop": "fra", "min_replicas": 1, "max_replicas": 3, "is_pinned": True}
    assert result(operator.put(path, json=body)) == {"model": VECTORS, **body}
    assert result(operator.get("scaling/overrides")) == [{"model": VECTORS, **body}]
    targets = result(operator.get("scaling/plan"))["targets"]
    (target,) = (each for each in targets if (each["model"], each["pop"]) == (VECTORS, "fra"))
    assert target["num_replicas"] >= 1
    result(operator.delete(path, params={"pop": "fra"}))
    assert operator.delete(path, params={"pop": "fra"}).status_code == 404
    assert result(operator.get("scaling/overrides")) == []
    assert audited(operator, "scaling") [:2] == [
        ("scaling.override_removed", VECTORS, "pop=fra"),
        ("scaling.override", VECTORS, "pop=fra min=1 max=3 pinned=true"),
    ]  # fmt: skip


def test_capacity_is_reserved_for_an_account_and_audited(running: Running, operator: httpx.Client):
    account_id = running.tenants.account_id
    path = f"accounts/{account_id}/ai/reserved_capacity/{PARROT}"
    reserved = result(operator.put(path, json={"pop": "iad", "tokens_per_s": 900}))
    assert reserved == {"account_id": account_id, "model": PARROT, "pop": "iad", "tokens_per_s": 900.0}
    assert result(operator.get("scaling/reserved_capacity")) == [reserved]
    assert result(operator.get(f"accounts/{account_id}/ai/reserved_capacity")) == [reserved]
    plan = result(operator.get("scaling/plan"))
    (target,) = (each for each in plan["targets"] if (each["model"], each["pop"]) == (PARROT, "iad"))
    assert "900 of them reserved" in target["reason"]
    result(operator.delete(path, params={"pop": "iad"}))
    assert result(operator.get("scaling/reserved_capacity")) == []
    assert audited(operator, "capacity")[:2] == [
        ("capacity.release", PARROT, "pop=iad"), ("capacity.reserve", PARROT, "pop=iad tokens_per_s=900"),
    ]  # fmt: skip


def test_what_if_compares_the_plan_without_a_pop(operator: httpx.Client):
    lost = result(operator.get("scaling/what_if", params={"lose": "fra"}))
    assert (PARROT, "fra", 1, 0) in [
        (each["model"], each["pop"], each["num_before"], each["num_after"]) for each in lost["differences"]
    ]
    assert result(operator.get("scaling/what_if", params={"add": "lis", "nodes": 3}))["unplaced"] == []


def test_invalid_rules_are_refused_with_the_field(running: Running, operator: httpx.Client):
    path = f"scaling/overrides/{PARROT}"
    assert "max_replicas" in operator.put(path, json={"min_replicas": 3, "max_replicas": 1}).text
    assert operator.put(path, json={"min_replicas": -1}).status_code == 400
    assert operator.put(path, json={"pop": "a b"}).status_code == 400
    assert operator.put("scaling/overrides/@cf/no/such", json={}).status_code == 400
    reserved = f"accounts/{running.tenants.account_id}/ai/reserved_capacity/{PARROT}"
    assert operator.put(reserved, json={"pop": "fra", "tokens_per_s": 0}).status_code == 400
    assert operator.delete(reserved).status_code == 400
    assert "either" in operator.get("scaling/what_if").text
    assert "no node runs" in operator.get("scaling/what_if", params={"lose": "zzz"}).text


def test_only_platform_roles_see_and_change_autoscaling(running: Running):
    headers = session_headers(running, "viewer", email="viewer@example.org")
    with httpx.Client(base_url=running.gateway.base_url, headers=headers, timeout=60) as viewer:
        assert viewer.get("scaling/plan").status_code == 200
        assert viewer.put(f"scaling/overrides/{PARROT}", json={}).status_code == 403
    account_headers = session_headers(running, None, email="member@example.org", account_role="administrator")
    with httpx.Client(base_url=running.gateway.base_url, headers=account_headers, timeout=60) as member:
        assert member.get("scaling/plan").status_code == 403
        own = f"accounts/{running.tenants.account_id}/ai/reserved_capacity"
        assert member.get(own).status_code == 200
        assert member.put(f"{own}/{PARROT}", json={"pop": "fra", "tokens_per_s": 1}).status_code == 403


def test_responses_match_the_openapi_document(running: Running, operator: httpx.Client):
    document = httpx.get(f"{running.gateway.url}/openapi.json").json()
    for path, query in {"/scaling/plan": {}, "/scaling/what_if": {"lose": "fra"}, "/scaling/overrides": {}}.items():
        content = document["paths"][f"/client/v4{path}"]["get"]["responses"]["200"]["content"]
        schema = {"components": document["components"], **content["application/json"]["schema"]}
        jsonschema_rs.Draft202012Validator(schema).validate(operator.get(path[1:], params=query).json())


def test_one_of_two_gateways_applies_plans_and_another_takes_over(new_site: Callable[..., Site]):
    site = new_site()
    node = site.add_node("n1", pop="fra")
    options = {"HEARTH_POP": "fra", "HEARTH_SCALING": "on", "HEARTH_SCALING_INTERVAL_S": "1"}
    gateways = [site.gateway(**options).start() for _ in range(2)]
    with contextlib.ExitStack() as stack:

        def client(gateway: GatewayProcess) -> httpx.Client:
            headers = session_headers(Running(site, gateway), "administrator", email=f"{gateway.port}@example.org")
            return stack.enter_context(httpx.Client(base_url=gateway.base_url, headers=headers, timeout=60))

        def holder(caller: httpx.Client) -> str | None:
            return result(caller.get("scaling/plan"))["holder"]

        clients = [client(gateway) for gateway in gateways]
        wait_until_blocking(lambda: holder(clients[0]) is not None)
        first = holder(clients[0])
        assert holder(clients[1]) == first
        result(clients[0].put(f"scaling/overrides/{PARROT}", json={"max_replicas": 0, "pop": "fra"}))
        wait_until_blocking(lambda: ("unload", PARROT) in [(each.action, each.model) for each in node.changes])
        for gateway in gateways:
            gateway.stop()
        third = client(site.gateway(**options).start())
        wait_until_blocking(lambda: holder(third) not in (None, first))
