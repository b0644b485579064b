"""Fixtures for commands: a migrated platform that is not running, and a function to run commands on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import main
from local_platform.data_dir import DataDir
from storage.migrate import migrate


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of a platform that was started once. Store URLs in this shell's environment are removed."""
    for env in ("DATABASE_URL", "REDIS_URL", "OBJECTS_URL", "HEARTH_TOKEN_PEPPER"):
        monkeypatch.delenv(env, raising=False)
    data_dir = DataDir(tmp_path / "platform")
    data_dir.create()
    data_dir.ensure_secrets()
    asyncio.run(migrate(data_dir.environ()["DATABASE_URL"]))
    return data_dir.path


@pytest.fixture
def hearth(data: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with --json, check its exit status, and return its output or its error message."""

    def run(*arguments: str, status: int = 0) -> Any:
        assert main.run([*arguments, "--data", str(data), "--json"]) == status
        captured = capsys.readouterr()
        if status:
            assert captured.out == ""
            return json.loads(captured.err)["error"]["message"]
        return json.loads(captured.out)

    return run
