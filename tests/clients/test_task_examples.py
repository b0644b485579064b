"""The examples of docs/tasks.md run against a platform: each section's shell, Python and JSON blocks, in order.

A `sh` or `python` block must succeed. A `json` block after a block is that block's output: numbers may differ by
TOLERANCE. Files that examples use are copies of files of the test data, listed in FILES.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.platform import Platform

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent.parent
BASE_URL = "http://127.0.0.1:8787"
FILES = {
    "speech.wav": "speech/jfk.wav",
    "horse.png": "images/horse.png",
    "coffee.png": "images/coffee.png",
}  # name in the examples -> file of the test data
PROGRAMS = {
    "Text to speech": "flite",
    "Translation": "apertium",
}  # section -> program of the operating system that its examples need
UNTESTED = "py"  # the language of examples that need weights or a microphone that no test has
TOLERANCE = 0.05
BLOCK_TIMEOUT_S = 600
UNAVAILABLE = ("could not be downloaded", "is not installed")  # messages of packages and programs that are missing


def sections() -> dict[str, list[tuple[str, str]]]:
    """Return the code blocks of docs/tasks.md as (language, text), by section."""
    found: dict[str, list[tuple[str, str]]] = {}
    for part in re.split(r"^## ", (ROOT / "docs/tasks.md").read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        found[title] = [(language, block) for language, block in blocks if language != UNTESTED]
    return {title: blocks for title, blocks in found.items() if blocks}


@pytest.fixture
def folder(platform: Platform, tmp_path: Path, test_data: Path) -> Path:
    """The folder in which examples run: it has the files, the platform's data directory and the command `hearth`."""
    for name, source in FILES.items():
        shutil.copy(test_data / source, tmp_path / name)
    (tmp_path / ".hearth").symlink_to(platform.data)
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    command = tmp_path / "bin/hearth"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cli.main "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run(platform: Platform, folder: Path, language: str, text: str) -> str:
    """Run a block and return its output. Skips the test if a package that the block fetches cannot be downloaded."""
    text = text.replace(BASE_URL, f"http://127.0.0.1:{platform.port}")
    command = ["sh", "-e", "-c", text] if language == "sh" else [sys.executable, "-c", "import os\n" + text]
    environ = os.environ | {
        "ACCOUNT": platform.account_id,
        "TOKEN": platform.api_token,
        "CURL_HOME": str(folder),
        "PATH": f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=BLOCK_TIMEOUT_S, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode and any(reason in said for reason in UNAVAILABLE):
        pytest.skip(said.strip()[-300:])
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def assert_similar(actual: Any, shown: Any, path: str = "$") -> None:
    """Assert that a value equals the one shown in the documentation, except for small differences of numbers."""
    if isinstance(shown, dict):
        assert isinstance(actual, dict), path
        assert actual.keys() == shown.keys(), path
        for name, value in shown.items():
            assert_similar(actual[name], value, f"{path}.{name}")
    elif isinstance(shown, list):
        assert isinstance(actual, list), path
        assert len(actual) == len(shown), path
        for number, value in enumerate(shown):
            assert_similar(actual[number], value, f"{path}[{number}]")
    elif isinstance(shown, float):
        assert actual == pytest.approx(shown, abs=TOLERANCE), path
    else:
        assert actual == shown, path


@pytest.mark.parametrize("section", sections())
def test_examples_of_a_task_work_as_documented(platform: Platform, folder: Path, section: str):
    program = PROGRAMS.get(section)
    if program is not None and shutil.which(program) is None:
        pytest.skip(f"the program {program} is not installed")
    output = ""
    for language, text in sections()[section]:
        assert language in ("sh", "python", "json"), f"a block of {language} cannot be tested"
        if language == "json":
            assert_similar(json.loads(output.splitlines()[-1]), json.loads(text))
        else:
            output = run(platform, folder, language, text)
