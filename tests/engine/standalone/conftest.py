"""A private copy of the reference model for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def stories(test_data: Path, tmp_path: Path) -> Path:
    """The reference model in a folder that the test may change."""
    folder = tmp_path / "stories"
    shutil.copytree(test_data / "models/stories260K", folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    folder.chmod(0o755)
    return folder
