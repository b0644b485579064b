"""`hearth node` on a running platform with two nodes, and the routes that load and unload models on real nodes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli import main
from tests.cli.test_up import Up
from tests.waiting import wait_until_blocking

SPARK, DRAFT = "@cf/hearth/spark", "@cf/hearth/spark-draft"

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with tempfile.TemporaryDirectory(prefix="hearth-node-") as name:  # short enough for Unix sockets
        up = Up(Path(name) / "p", "--nodes", "2", "--no-starter").wait_ready()
        yield up
        up.stop()


@pytest.fixture
def hearth(up: Up, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command with --json; return its output, or the error message if `status` is not 0."""
    monkeypatch.delenv("DATABASE_URL", raising=False)

    def run(*arguments: str, status: int = 0) -> Any:
        assert main.run([*arguments, "--data", str(up.data), "--json"]) == status
        captured = capsys.readouterr()
        if status:
            return json.loads(captured.err.splitlines()[-1])["error"]["message"]
        return json.loads(captured.out)

    return run


@pytest.fixture
def operator(up: Up, hearth: Callable[..., Any]) -> Iterator[httpx.Client]:
    """A browser that has signed in with a link of `hearth dashboard`."""
    origin, _, token = hearth("dashboard")["sign_in_link"].partition("/dashboard/link#")
    with httpx.Client(base_url=origin, timeout=60, headers={"sec-fetch-site": "same-origin"}) as client:
        client.post("/admin/sign-in/link", json={"token": token}).raise_for_status()
        client.headers["x-hearth-csrf"] = client.get("/admin/session").json()["result"]["csrf_token"]
        yield client


def states(hearth: Callable[..., Any]) -> dict[str, str]:
    return {node["node_id"]: node["state"] for node in hearth("node", "list")}


def test_nodes_report_their_device_and_what_their_models_need(hearth: Callable[..., Any]):
    def ready_node() -> dict[str, Any] | None:
        node, _ = hearth("node", "list")
        return node if any(replica["kv_bytes"] for replica in node["replicas"]) else None

    node = wait_until_blocking(ready_node)
    assert (node["node_id"], node["state"], node["is_reachable"]) == ("local-1", "ready", True)
    assert node["memory_bytes"] > node["weight_bytes"] + node["kv_bytes"] > 0
    assert node["started_at"]
    (replica,) = node["replicas"]
    assert replica["model"] == SPARK
    assert replica["weight_bytes"] > 1 << 20
    assert replica["kv_bytes"] > 1 << 20
    assert node["kv_free_ratio"] == 1.0


def test_drained_node_takes_no_calls_until_it_is_undrained(hearth: Callable[..., Any], up: Up):
    assert hearth("node", "drain", "local-1")["changed"] == "drained"
    wait_until_blocking(lambda: states(hearth)["local-1"] == "draining")
    explained = hearth("node", "explain", SPARK)
    assert [node["node_id"] for node in explained["ranked"]] == ["local-2"]
    assert explained["steps"][1]["removed"] == [{"node_id": "local-1", "reason": "the node is draining"}]
    responses = [up.ask(f"prompt {number}") for number in range(6)]
    assert {response.status_code for response in responses} == {200}
    rows = wait_until_blocking(lambda: _calls(up, 6))
    assert {row["node_id"] for row in rows} == {"local-2"}
    assert hearth("node", "undrain", "local-1")["changed"] == "undrained"
    wait_until_blocking(lambda: states(hearth)["local-1"] == "ready")
    assert {node["node_id"] for node in hearth("node", "explain", SPARK)["ranked"]} == {"local-1", "local-2"}
    assert "no such node" in hearth("node", "drain", "moon", status=1)
    actions = [(row["action"], row["actor"]) for row in hearth("audit", "list", "--limit", "2")]
    assert actions == [("node.undrain", "cli"), ("node.drain", "cli")]


def _calls(up: Up, number: int) -> list[dict[str, Any]]:
    """Return the newest calls, once the ledger has so many of them."""
    dev = up.dev
    url = f"{dev['base_url']}/accounts/{dev['account_id']}/ai/usage/calls"
    response = httpx.get(url, params={"limit": number}, headers={"Authorization": f"Bearer {dev['api_token']}"})
    rows: list[dict[str, Any]] = response.raise_for_status().json()["result"]
    return rows if len(rows) == number else []


def test_model_is_loaded_and_unloaded_by_a_gateway(operator: httpx.Client):
    def replicas() -> dict[str, str]:
        (node,) = (each for each in operator.get("/client/v4/nodes").json()["result"] if each["node_id"] == "local-2")
        return {replica["model"]: replica["state"] for replica in node["replicas"]}

    operator.post("/client/v4/nodes/local-2/replicas", json={"model": DRAFT}).raise_for_status()
    wait_until_blocking(lambda: replicas().get(DRAFT) == "ready")
    operator.delete(f"/client/v4/nodes/local-2/replicas/{DRAFT}").raise_for_status()
    wait_until_blocking(lambda: DRAFT not in replicas())
    refused = operator.delete(f"/client/v4/nodes/local-2/replicas/{DRAFT}")
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["message"] == f"node local-2: {DRAFT} is not loaded"


def test_pinned_model_stays_loaded_until_it_is_unpinned(hearth: Callable[..., Any]):
    def replica() -> dict[str, Any]:
        (node,) = (node for node in hearth("node", "list") if node["node_id"] == "local-2")
        return next((each for each in node["replicas"] if each["model"] == DRAFT), {})

    assert hearth("node", "pin", "local-2", DRAFT)["begun"] == "pin"
    wait_until_blocking(lambda: replica().get("state") == "ready" and replica()["is_pinned"])
    assert "is pinned; unpin it first" in hearth("node", "unload", "local-2", DRAFT, status=1)
    hearth("node", "unpin", "local-2", DRAFT)
    wait_until_blocking(lambda: not replica()["is_pinned"])
    hearth("node", "unload", "local-2", DRAFT)
    wait_until_blocking(lambda: not replica())
    hearth("node", "load", "local-2", DRAFT)
    wait_until_blocking(lambda: replica().get("state") == "ready")
    actions = [row["action"] for row in hearth("audit", "list", "--limit", "4")]
    assert actions == ["node.load", "node.unload", "node.unpin", "node.unload"]


def test_join_token_is_printed_once_and_audited(hearth: Callable[..., Any]):
    created = hearth("node", "token", "--pop", "fra", "--node", "n9", "--life", "10m")
    assert created["token"].startswith("hearth-join-")
    assert (created["pop"], created["node"]) == ("fra", "n9")
    (row,) = hearth("audit", "list", "--limit", "1")
    assert row["action"] == "node.token"
    assert created["token"] not in str(row)
    assert "at most 7d" in hearth("node", "token", "--life", "9d", status=2)
    assert "--pop must be" in hearth("node", "token", "--pop", "a b", status=2)
