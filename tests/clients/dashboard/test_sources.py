"""The dashboard's own checks: types against the OpenAPI document, lint and unit tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.build_dashboard import SOURCES
from scripts.fetch_node_clients import NODE_FOLDER
from worker_runtime.node_js import ToolsMissing, ensure_node, ensure_packages

pytestmark = pytest.mark.full

CHECK_TIMEOUT_S = 500


def test_sources_match_the_api_and_pass_type_checks_lint_and_unit_tests() -> None:
    try:
        node = ensure_node(NODE_FOLDER, print)
        ensure_packages(node, SOURCES, SOURCES, print)
    except ToolsMissing as error:
        pytest.skip(f"no Node.js or no packages: {error}")
    environ = {**node.environ(), "PYTHON": sys.executable}
    command = [*node.npm, "run", "check"]
    done = subprocess.run(
        command, cwd=SOURCES, env=environ, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
