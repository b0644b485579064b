"""Models that `hearth model add` fetches, for tests against a platform."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.platform import Platform

ADD_TIMEOUT_S = 600


def add_model(platform: Platform, name: str) -> None:
    """Add a model to the platform. Skips the test if the packages of the model cannot be downloaded."""
    command = [sys.executable, "-m", "cli.main", "model", "add", name, "--data", str(platform.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ADD_TIMEOUT_S, check=False, env=os.environ)
    if "could not be downloaded" in done.stderr:
        pytest.skip(f"the packages of the model cannot be downloaded: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
