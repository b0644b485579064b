"""The routes about nodes and PoPs: reports, drain, load and unload, and the explanation of placements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import get_args

import httpx
import jsonschema_rs
import pytest

from engine.protocol.wire import ManageAction
from gateway.nodes.known_pops import KNOWN_POPS, find_known_pop
from tests.gateway.browser_session import session_headers
from tests.gateway.process import PARROT, VECTORS
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking

LOCATIONS = "fra=DE:gdpr,lab=PT@38.7/-9.1/Lisbon"


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site]) -> Running:
    site = new_site()
    site.add_node("n1", pop="fra", proves_pop="fra")
    site.add_node("n2", pop="iad")
    gateway = site.gateway(HEARTH_POP="fra", HEARTH_LOCATIONS=LOCATIONS).start()
    wait_until_blocking(lambda: gateway.metric("hearth_nodes_alive") == 2)
    return Running(site, gateway)


@pytest.fixture(scope="module")
def operator(running: Running) -> Iterator[httpx.Client]:
    headers = session_headers(running, "administrator", email="op@example.org", account_role="administrator")
    with httpx.Client(base_url=running.gateway.base_url, headers=headers, timeout=60) as client:
        yield client


def nodes_of(client: httpx.Client) -> dict[str, dict]:
    return {node["node_id"]: node for node in client.get("nodes").raise_for_status().json()["result"]}


def audited(client: httpx.Client) -> list[tuple[str, str, str]]:
    """Return action, node and model of the changes to nodes, newest first."""
    rows = client.get("audit_logs", params={"account_id": "platform", "action.type": "node"}).json()["result"]
    return [(row["action"]["type"], row["resource"]["id"], row["metadata"]["detail"]) for row in rows]


def test_nodes_are_listed_with_their_devices_and_replicas(running: Running, operator: httpx.Client):
    nodes = nodes_of(operator)
    assert list(nodes) == ["n1", "n2"]
    node = nodes["n1"]
    assert (node["pop"], node["state"], node["is_reachable"]) == ("fra", "ready", True)
    assert (node["device_name"], node["memory_bytes"], node["version"]) == ("Fake CPU", 8 << 30, "0")
    assert node["started_at"] == "2023-11-14T22:13:20Z"
    assert node["kv_free_ratio"] is None
    (replica,) = (each for each in node["replicas"] if each["model"] == PARROT)
    assert replica["state"] == "ready"


def test_responses_match_the_openapi_document(running: Running, operator: httpx.Client):
    document = httpx.get(f"{running.gateway.url}/openapi.json").json()
    account = f"/accounts/{running.tenants.account_id}"
    for path, url in {
        "/nodes": "/nodes",
        "/pops": "/pops",
        "/health": "/health",
        "/settings": "/settings",
        "/audit_logs": "/audit_logs",
        "/audit_logs/verification": "/audit_logs/verification",
        "/metrics/summary": "/metrics/summary",
        "/accounts/{account_id}/ai/metrics/summary": f"{account}/ai/metrics/summary",
        "/accounts/{account_id}/tokens": f"{account}/tokens",
        "/accounts/{account_id}/tokens/permission_groups": f"{account}/tokens/permission_groups",
        "/accounts/{account_id}/ai/finetunes": f"{account}/ai/finetunes",
        "/accounts/{account_id}/ai/placement/explain": f"{account}/ai/placement/explain?model={PARROT}",
    }.items():
        content = document["paths"][f"/client/v4{path}"]["get"]["responses"]["200"]["content"]
        schema = {"components": document["components"], **content["application/json"]["schema"]}
        assert "result" in schema["properties"], path
        response = operator.get(url)
        assert response.status_code == 200, (url, response.text)
        jsonschema_rs.Draft202012Validator(schema).validate(response.json())


def test_pops_have_the_city_of_their_code_and_the_operators_jurisdictions(operator: httpx.Client):
    pops = pops_of(operator)
    round_trips = {name: pops["fra"].pop(name) for name in ("round_trip_ms", "is_measured", "round_trips_ms")}
    assert round_trips.keys() == pops["iad"].keys() - pops["fra"].keys()
    assert pops["fra"] == {
        "pop": "fra", "city": "Frankfurt", "country": "DE", "latitude": 50.1, "longitude": 8.7,
        "jurisdictions": ["eea", "eu", "gdpr"], "num_nodes": 1,
    }  # fmt: skip
    assert pops["iad"]["country"] == "US"
    assert pops["iad"]["jurisdictions"] == []  # a PoP that the operator has not listed is in no jurisdiction
    assert (pops["lab"]["city"], pops["lab"]["latitude"], pops["lab"]["num_nodes"]) == ("Lisbon", 38.7, 0)


def pops_of(client: httpx.Client) -> dict[str, dict]:
    return {pop["pop"]: pop for pop in client.get("pops").raise_for_status().json()["result"]}


def test_round_trips_to_pops_are_measured_and_published(operator: httpx.Client):
    wait_until_blocking(lambda: {"fra", "iad"} <= pops_of(operator)["fra"]["round_trips_ms"].keys())
    pops = pops_of(operator)
    assert pops["fra"]["is_measured"]
    assert 0 < pops["fra"]["round_trip_ms"] < 1000
    # Both nodes run on this machine, and no signal reaches Virginia and returns in such a short time.
    assert not pops["iad"]["is_measured"]
    assert 90 < pops["iad"]["round_trip_ms"] < 110
    assert not pops["lab"]["is_measured"]
    assert 20 < pops["lab"]["round_trip_ms"] < 50  # estimated from Frankfurt to Lisbon


def test_evacuated_pop_is_drained_and_restored(running: Running, operator: httpx.Client):
    node = running.site.nodes["n2"]
    before = len(node.changes)
    drained = operator.post("pops/iad/drain").raise_for_status().json()["result"]
    assert drained == {"pop": "iad", "changed": ["n2"], "errors": {}}
    node.change_error = "the node is stopping"
    assert operator.post("pops/iad/undrain").json()["result"]["errors"] == {"n2": "the node is stopping"}
    node.change_error = ""
    operator.post("pops/iad/undrain").raise_for_status()
    assert [change.action for change in node.changes[before:]] == ["drain", "undrain", "undrain"]
    rows = operator.get("audit_logs", params={"account_id": "platform", "action.type": "pop"}).json()["result"]
    assert [(row["action"]["type"], row["resource"]["id"]) for row in rows][-3:] == [
        ("pop.undrain", "iad"), ("pop.undrain", "iad"), ("pop.drain", "iad"),
    ]  # fmt: skip
    assert operator.post("pops/nowhere/drain").status_code == 404


def test_known_pops_are_on_earth_and_found_by_code():
    assert all(abs(pop.latitude) <= 90 and abs(pop.longitude) <= 180 and pop.city for pop in KNOWN_POPS.values())
    assert find_known_pop("FRA-02") == find_known_pop("fra") == KNOWN_POPS["fra"]
    assert find_known_pop("local") is find_known_pop("zzz") is None


def test_changes_reach_the_node_and_are_audited(running: Running, operator: httpx.Client):
    node = running.site.nodes["n1"]
    assert operator.post("nodes/n1/drain").raise_for_status().json()["result"]["node_id"] == "n1"
    operator.post("nodes/n1/undrain").raise_for_status()
    operator.post("nodes/n1/replicas", json={"model": VECTORS}).raise_for_status()
    operator.delete(f"nodes/n1/replicas/{VECTORS}").raise_for_status()
    operator.post("nodes/n1/pins", json={"model": VECTORS}).raise_for_status()
    operator.delete(f"nodes/n1/pins/{VECTORS}").raise_for_status()
    assert [(change.action, change.model) for change in node.changes] == [
        ("drain", ""), ("undrain", ""), ("load", VECTORS), ("unload", VECTORS),
        ("pin", VECTORS), ("unpin", VECTORS),
    ]  # fmt: skip
    assert audited(operator)[:6] == [
        ("node.unpin", "n1", VECTORS), ("node.pin", "n1", VECTORS),
        ("node.unload", "n1", VECTORS), ("node.load", "n1", VECTORS), ("node.undrain", "n1", ""),
        ("node.drain", "n1", ""),
    ]  # fmt: skip


def test_impossible_changes_are_refused_with_the_reason(running: Running, operator: httpx.Client):
    node = running.site.nodes["n2"]
    assert operator.post("nodes/n9/drain").status_code == 404
    unknown = operator.post("nodes/n2/replicas", json={"model": "@cf/no/such"})
    assert unknown.status_code == 400
    assert operator.post("nodes/n2/replicas", json={}).json()["errors"][0]["code"] == 1004
    node.change_error = f"{PARROT} is not loaded"
    refused = operator.delete(f"nodes/n2/replicas/{PARROT}")
    node.change_error = ""
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["message"] == f"node n2: {PARROT} is not loaded"


def test_node_of_an_older_version_is_not_asked_for_changes(running: Running, operator: httpx.Client):
    node = running.site.nodes["n2"]
    node.version = ""
    node.publish()
    wait_until_blocking(lambda: nodes_of(operator)["n2"]["version"] == "")
    before = len(node.changes)
    assert "older version" in operator.post("nodes/n2/drain").json()["errors"][0]["message"]
    node.version, node.actions = "0", ("drain",)
    node.publish()
    wait_until_blocking(lambda: nodes_of(operator)["n2"]["version"] == "0")
    message = operator.post("nodes/n2/pins", json={"model": PARROT}).json()["errors"][0]["message"]
    assert message == "node n2 runs an older version that cannot pin models"
    assert len(node.changes) == before
    node.actions = get_args(ManageAction)
    node.publish()


def test_platform_viewer_sees_the_fleet_and_changes_nothing(running: Running):
    headers = session_headers(running, "viewer", email="viewer@example.org")
    with httpx.Client(base_url=running.gateway.base_url, headers=headers, timeout=60) as viewer:
        assert set(nodes_of(viewer)) >= {"n1", "n2"}
        assert viewer.post("nodes/n1/drain").status_code == 403
    account_headers = session_headers(running, None, email="member@example.org", account_role="administrator")
    with httpx.Client(base_url=running.gateway.base_url, headers=account_headers, timeout=60) as member:
        assert member.get("nodes").status_code == 403


def test_killed_node_is_listed_as_gone_and_comes_back(running: Running, operator: httpx.Client):
    running.site.add_node("n3", pop="iad")
    wait_until_blocking(lambda: nodes_of(operator).get("n3", {}).get("is_reachable"))
    running.site.nodes["n3"].die()
    wait_until_blocking(lambda: nodes_of(operator)["n3"]["state"] == "gone")
    assert operator.post("nodes/n3/drain").json()["errors"][0]["message"] == "node n3 has left"
    running.site.nodes.pop("n3").stop()
    (running.site.folder / "n3.sock").unlink(missing_ok=True)
    running.site.add_node("n3", pop="iad")
    wait_until_blocking(lambda: nodes_of(operator)["n3"]["state"] == "ready")
    running.site.nodes.pop("n3").stop()


def explain(client: httpx.Client, running: Running, **query: str) -> dict:
    url = f"accounts/{running.tenants.account_id}/ai/placement/explain"
    result: dict = client.get(url, params={"model": PARROT, **query}).raise_for_status().json()["result"]
    return result


def test_explanation_agrees_with_the_header_and_with_the_node_that_runs_the_call(
    running: Running, operator: httpx.Client
):
    found = explain(operator, running, session="s1")
    assert [step["filter"] for step in found["steps"]] == [
        "reachable", "draining", "model", "residency", "failing", "limits",
    ]  # fmt: skip
    assert [(node["node_id"], node["tier"], node["is_hot"]) for node in found["ranked"]] == [
        ("n1", 1, True), ("n2", 2, True),
    ]  # fmt: skip
    best = found["ranked"][0]
    assert best["reason"].startswith("model is ready; PoP fra, round trip ")
    assert best["reason"].endswith(" ms; order by affinity")
    assert best["load_tokens"] == 0
    assert best["predicted_s"] == pytest.approx(best["round_trip_ms"] / 1000, abs=1e-4)
    url = f"accounts/{running.tenants.account_id}/ai/run/{PARROT}"
    response = operator.post(url, json={"prompt": "x"}, headers={"x-session-affinity": "s1"}).raise_for_status()
    assert re.match(r"ranked=n1:[0-9.]+,n2:[0-9.]+; removed=", response.headers["x-hearth-placement"])
    assert running.site.nodes["n1"].executes[-1].request_id == response.headers["x-hearth-request-id"]
    of_token = httpx.post(f"{running.gateway.base_url}/{url}", json={"prompt": "x"}, headers=running.headers())
    assert "x-hearth-placement" not in of_token.raise_for_status().headers


def test_explanation_says_which_filter_removed_a_node(running: Running, operator: httpx.Client):
    running.site.nodes["n2"].state = "draining"
    running.site.nodes["n2"].publish()
    wait_until_blocking(lambda: nodes_of(operator)["n2"]["state"] == "draining")
    draining = explain(operator, running)
    assert draining["steps"][1] == {
        "filter": "draining", "removed": [{"node_id": "n2", "reason": "the node is draining"}],
    }  # fmt: skip
    running.site.nodes["n2"].state = "ready"
    running.site.nodes["n2"].publish()
    wait_until_blocking(lambda: nodes_of(operator)["n2"]["state"] == "ready")
    body = {"name": "main", "settings": {"region": {"jurisdictions": ["gdpr"]}}}
    operator.put(f"accounts/{running.tenants.account_id}", json=body).raise_for_status()
    bound = explain(operator, running)
    operator.put(
        f"accounts/{running.tenants.account_id}", json={"name": "main", "settings": {"region": None}}
    ).raise_for_status()
    assert [node["node_id"] for node in bound["ranked"]] == ["n1"]
    assert [removed["node_id"] for removed in bound["steps"][3]["removed"]] == ["n2"]


def test_members_of_the_account_see_no_load_of_nodes(running: Running):
    with httpx.Client(base_url=running.gateway.base_url, headers=running.headers("keeper"), timeout=60) as client:
        assert {node["load_tokens"] for node in explain(client, running)["ranked"]} == {None}
