"""scripts/fetch_node_clients.py: installation is retried a few times when the registry does not respond."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import fetch_node_clients as script
from worker_runtime.node_js import Node, ToolsMissing


@pytest.mark.parametrize(("num_failures", "status"), [(0, 0), (2, 0), (3, 0), (4, 1)])
def test_installation_of_packages_is_retried(monkeypatch: pytest.MonkeyPatch, num_failures: int, status: int):
    slept: list[float] = []
    failures = iter([ToolsMissing("ETIMEDOUT")] * num_failures)

    def install(*_arguments: object) -> None:
        if failure := next(failures, None):
            raise failure

    monkeypatch.setattr(script, "ensure_node", lambda *_arguments: Node(Path("node"), ("npm",), "22.12.0"))
    monkeypatch.setattr(script, "ensure_packages", install)
    monkeypatch.setattr("time.sleep", slept.append)
    assert script.main() == status
    assert slept == list(script.RETRY_PAUSES_S[: num_failures + 1])
