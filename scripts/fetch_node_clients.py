"""Brings what the tests of Node clients need into git-ignored folders, once: Node where this machine has none that is
new enough, and the packages of tests/clients/node and of `hearth worker dev`. `make test-full` runs it first.

Without any Node it says why and lets the tests skip; packages that cannot be had are a failure, once they have been
asked for PAUSES_S apart.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cli.node_tools import ToolsMissing, ensure_node, ensure_packages
from cli.worker import TOOLS

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".cache" / "worker"  # as `hearth worker dev --tools` takes it
NODE_FOLDER = FOLDER / "node"
PAUSES_S = (0, 5, 20, 60)  # a registry that is being restarted is back after one of them
PACKAGES = ROOT / "tests" / "clients" / "node"


def main() -> int:
    try:
        node = ensure_node(NODE_FOLDER, _say)
    except ToolsMissing as error:
        _say(f"tests of Node clients will be skipped: {error}")
        return 0
    _say(f"Node {node.version} at {node.command}")
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        try:
            ensure_packages(node, PACKAGES, PACKAGES, _say)
            ensure_packages(node, TOOLS, FOLDER / "packages", _say)
            return 0
        except ToolsMissing as error:
            _say(str(error))
    return 1


def _say(text: str) -> None:
    print(f"node clients: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
