"""Run a suite of `tests/clients/node` with Node's test runner and parse its summary."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from scripts.fetch_node_clients import PACKAGES
from tests.platform import Platform
from worker_runtime.node_js import Node

TIMEOUT_S = 180

_COUNT = re.compile(r"^# (tests|pass|fail|cancelled|skipped) (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Counts:
    """The counts in the runner's summary."""

    tests: int
    passed: int
    skipped: int


def environ_of(node: Node, platform: Platform) -> dict[str, str]:
    """Return the environment variables with which a suite finds the platform."""
    origin = platform.base_url.removesuffix("/client/v4")
    values = {
        "ORIGIN": origin,
        "ACCOUNT": platform.account_id,
        "TOKEN": platform.api_token,
        "CHAT_MODEL": platform.chat_model,
        "EMBED_MODEL": platform.embed_model,
    }
    return node.environ() | {f"HEARTH_CLIENT_{name}": value for name, value in values.items()}


def run_suite(node: Node, platform: Platform, name: str, **variables: str) -> Counts:
    """Run all tests of a file. `variables` are set in its environment. The output is the message of a failure."""
    command = [str(node.command), "--test", "--test-reporter=tap", f"{name}.test.mjs"]
    environ = environ_of(node, platform) | variables
    done = subprocess.run(
        command, cwd=PACKAGES, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    found = {kind: int(number) for kind, number in _COUNT.findall(done.stdout)}
    assert done.returncode == 0, done.stdout + done.stderr
    return Counts(found["tests"], found["pass"], found["skipped"])
