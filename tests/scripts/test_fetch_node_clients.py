"""scripts/fetch_node_clients.py: a registry that does not answer is asked again, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.node_tools import Node, ToolsMissing
from scripts import fetch_node_clients as script


@pytest.mark.parametrize(("num_failures", "status"), [(0, 0), (2, 0), (3, 0), (4, 1)])
def test_packages_are_asked_for_several_times(monkeypatch: pytest.MonkeyPatch, num_failures: int, status: int):
    slept: list[float] = []
    failures = iter([ToolsMissing("ETIMEDOUT")] * num_failures)

    def install(*_asked: object) -> None:
        if failure := next(failures, None):
            raise failure

    monkeypatch.setattr(script, "ensure_node", lambda *_asked: Node(Path("node"), ("npm",), "22.12.0"))
    monkeypatch.setattr(script, "ensure_packages", install)
    monkeypatch.setattr("time.sleep", slept.append)
    assert script.main() == status
    assert slept == list(script.PAUSES_S[: num_failures + 1])
