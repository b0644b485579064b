"""One live Hearth on its built-in models for every client, and the environment that Python's clients are in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.platform import Platform

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    running = Platform(tmp_path_factory.mktemp("hearth"), nodes=1).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def clients_env() -> Path:
    """The folder that `scripts/clients.sh` makes: HEARTH_CLIENTS_ENV, else `.venv-clients`."""
    folder = Path(os.environ.get("HEARTH_CLIENTS_ENV") or ROOT / ".venv-clients").absolute()
    if not (folder / "bin/python").exists():
        pytest.skip("no clients' environment: `sh scripts/clients.sh` makes it")
    return folder
