"""Usage is recorded exactly once wherever the recording process is killed and whatever a power failure undoes (promise
P6).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tenants.kill_points import STEPS

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


def run(template: str, folder: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.tenants.kill_points", template, str(folder / "rounds"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, done.stdout + done.stderr[-2000:]


def test_kill_at_every_step_loses_doubles_and_invents_no_row(migrated_sqlite_file: Path, tmp_path: Path) -> None:
    status, result = run(str(migrated_sqlite_file), tmp_path, "--points", "220")
    assert status == 0, result
    hits = {line[5:]: int(line[:4]) for line in result.splitlines()[: len(STEPS)]}
    assert hits.keys() == set(STEPS)
    assert sum(hits.values()) >= 220


def test_kill_at_every_step_on_postgres(migrated_postgres_url: str, tmp_path: Path) -> None:
    status, result = run(migrated_postgres_url, tmp_path, "--points", "48", "--seed", "2")
    assert status == 0, result


@pytest.mark.parametrize(("what", "says"), [("fsync", "have no row"), ("conflict", "refused")])
def test_campaign_detects_missing_safeguards(migrated_sqlite_file: Path, tmp_path: Path, what: str, says: str) -> None:
    status, result = run(str(migrated_sqlite_file), tmp_path, "--points", "48", "--without", what)
    assert status == 1
    assert says in result
