"""The Cloudflare Python SDK's own test suite passes, except for a list of known failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import sdk_suite


@pytest.mark.full
@pytest.mark.timeout(600)
def test_sdk_suite_failures_match_the_known_list(clients_env: Path):
    folder = clients_env / "sdk"
    if not folder.is_dir():
        pytest.skip("no source distribution of the SDK: `sh scripts/clients.sh` brings it")
    report = sdk_suite.run(folder, clients_env / "bin/python", [])
    print(report)  # noqa: T201 - its own counts
    assert sorted(report.failures) == sorted(sdk_suite.known_failures())
    assert report.counts["passed"] >= 600
