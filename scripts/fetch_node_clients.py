"""Install what the tests with Node.js clients need into git-ignored folders, once. `make test-full` runs this first.

Installs Node.js if the machine has no recent version, and the npm packages of `tests/clients/node` and of
`hearth worker dev`. Without Node.js the tests are skipped. Packages that cannot be installed after RETRY_PAUSES_S are a
failure.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from worker_runtime.dev_server import WORKERD_FOLDER
from worker_runtime.node_js import ToolsMissing, ensure_node, ensure_packages

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".cache" / "worker"  # for `hearth worker dev --tools`
NODE_FOLDER = FOLDER / "node"
RETRY_PAUSES_S = (0, 5, 20, 60)  # long enough for a registry to restart
PACKAGES = ROOT / "tests" / "clients" / "node"


def main() -> int:
    """Return the exit status: 0 if everything is installed or Node.js is unavailable."""
    try:
        node = ensure_node(NODE_FOLDER, _log)
    except ToolsMissing as error:
        _log(f"tests with Node.js clients will be skipped: {error}")
        return 0
    _log(f"Node.js {node.version} at {node.command}")
    for pause_s in RETRY_PAUSES_S:
        time.sleep(pause_s)
        try:
            ensure_packages(node, PACKAGES, PACKAGES, _log)
            ensure_packages(node, WORKERD_FOLDER, FOLDER / "packages", _log)
            return 0
        except ToolsMissing as error:
            _log(str(error))
    return 1


def _log(text: str) -> None:
    print(f"node clients: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
