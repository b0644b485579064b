"""Official and common Node clients. Each suite is a file of `tests/clients/node` and runs in Node's test runner.
Workers call their AI binding in workerd, miniflare and wrangler.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clients.added_models import add_model
from tests.clients.suites import Counts, run_suite
from tests.platform import Platform
from worker_runtime.node_js import Node

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("suite", "num_tests"),
    [("cloudflare", 9), ("openai", 8), ("ai_sdk", 11), ("workerd", 11), ("miniflare", 12), ("wrangler", 12)],
)
def test_every_test_of_a_suite_passes(node: Node, platform: Platform, suite: str, num_tests: int, capsys):
    counts = run_suite(node, platform, suite)
    with capsys.disabled():
        sys.stdout.write(f"\n{suite}: {counts.passed} of {counts.tests} passed, {counts.skipped} skipped\n")
    assert counts == Counts(num_tests, num_tests, 0)


def test_both_official_clients_use_other_tasks(node: Node, platform: Platform, test_data: Path):
    classifier, listener = "@cf/hearth/minilm-sentiment", "@cf/usefulsensors/moonshine-tiny"
    add_model(platform, classifier)
    add_model(platform, listener)
    variables = {"CLASSIFIER": classifier, "LISTENER": listener, "RECORDING": str(test_data / "speech" / "jfk.wav")}
    counts = run_suite(node, platform, "tasks", **{f"HEARTH_CLIENT_{name}": value for name, value in variables.items()})
    assert counts == Counts(4, 4, 0)
