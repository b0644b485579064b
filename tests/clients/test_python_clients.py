"""Official and common Python clients in their newest versions.

Their tests are in `python/` and run in `.venv-clients`, because the clients are not installed in this environment.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.platform import Platform

FOLDER = Path(__file__).parent / "python"
CLIENTS = sorted(path.stem.removeprefix("client_") for path in FOLDER.glob("client_*.py"))


@pytest.mark.full
@pytest.mark.timeout(300)  # importing some clients takes many seconds on a busy machine
@pytest.mark.parametrize("client", CLIENTS)
def test_python_client_suite_passes(platform: Platform, clients_env: Path, client: str):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "HEARTH_BASE_URL": platform.base_url,
        "HEARTH_ACCOUNT_ID": platform.account_id,
        "HEARTH_API_TOKEN": platform.api_token,
        "HEARTH_CHAT_MODEL": platform.chat_model,
        "HEARTH_EMBED_MODEL": platform.embed_model,
    }
    command = [clients_env / "bin/python", "-m", "pytest", "-c", FOLDER / "pytest.ini", "--confcutdir", FOLDER, "-q"]
    done = subprocess.run(
        [*command, FOLDER / f"client_{client}.py"], env=environ, capture_output=True, text=True, check=False
    )
    print(done.stdout.splitlines()[-1:])  # noqa: T201 - its own count
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout
