"""Official and common Node clients. Each suite is a file of `tests/clients/node` and runs in Node's test runner.
Workers call their AI binding in workerd, miniflare and wrangler.
"""

from __future__ import annotations

import sys

import pytest

from tests.clients.suites import Counts, run_suite
from tests.platform import Platform
from worker_runtime.node_js import Node

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("suite", "num_tests"),
    [("cloudflare", 9), ("openai", 8), ("ai_sdk", 11), ("workerd", 11), ("miniflare", 11), ("wrangler", 11)],
)
def test_every_test_of_a_suite_passes(node: Node, platform: Platform, suite: str, num_tests: int, capsys):
    counts = run_suite(node, platform, suite)
    with capsys.disabled():
        sys.stdout.write(f"\n{suite}: {counts.passed} of {counts.tests} passed, {counts.skipped} skipped\n")
    assert counts == Counts(num_tests, num_tests, 0)
