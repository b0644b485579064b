"""`hearth model ps`, `load` and `unload` on a running platform with two nodes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import main
from tests.catalog.cards import write_model_folder
from tests.cli.test_up import Up

MINILM, SPARK, DRAFT = "@cf/hearth/minilm", "@cf/hearth/spark", "@cf/hearth/spark-draft"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with tempfile.TemporaryDirectory(prefix="hearth-ps-") as name:  # short enough for Unix sockets
        up = Up(Path(name) / "p", "--nodes", "2", "--no-starter").wait_ready()
        yield up
        up.stop()


@pytest.fixture
def model(up: Up, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run `hearth model ...` with --json; return its output, or the error message if `status` is not 0."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("HEARTH_SERVICE_RING", raising=False)

    def run(*arguments: str, status: int = 0) -> Any:
        assert main.run(["model", *arguments, "--data", str(up.data), "--json"]) == status
        captured = capsys.readouterr()
        if status:
            return json.loads(captured.err.splitlines()[-1])["error"]["message"]
        return json.loads(captured.out)

    return run


def states(model: Callable[..., Any]) -> dict[tuple[str, str], str]:
    return {(row["model"], row["node"]): row["state"] for row in model("ps")}


def test_model_is_loaded_and_unloaded_on_all_nodes_or_on_one(model: Callable[..., Any]) -> None:
    at_start = {(SPARK, "local-1"): "ready", (SPARK, "local-2"): "ready"}
    assert states(model) == at_start
    rows = model("load", DRAFT, "--node", "local-2")
    assert rows == [{"model": DRAFT, "node": "local-2", "state": "loaded"}]
    shown = {row["node"]: row for row in model("show", DRAFT)["replicas"]}
    assert shown.keys() == {"local-2"}
    assert shown["local-2"]["size"].endswith("MB")
    assert [row["node"] for row in model("unload", DRAFT)] == ["local-2"]
    assert "no node has loaded" in model("unload", DRAFT, status=1)
    assert "is not loaded" in model("unload", DRAFT, "--node", "local-1", status=1)
    assert states(model) == at_start


def test_impossible_request_is_refused_with_the_reason(model: Callable[..., Any], up: Up, tmp_path: Path) -> None:
    assert "there is no model @cf/acme/none" in model("load", "@cf/acme/none", status=1)
    assert "there is no node moon (running: local-1, local-2)" in model("load", SPARK, "--node", "moon", status=1)
    assert "a model id has the form" in model("load", "spark", status=2)
    model("publish", str(write_model_folder(tmp_path / "noise")), "--name", "@cf/acme/noise")
    message = model("load", "@cf/acme/noise", "--node", "local-1", status=1)
    assert message.startswith("node local-1: ")


def test_replicas_of_a_stopped_platform_cannot_be_listed(hearth: Callable[..., Any]) -> None:
    assert "is not running" in hearth("model", "ps", status=1)
    assert "is not running" in hearth("model", "load", SPARK, status=1)
