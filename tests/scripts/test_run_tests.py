"""scripts/run_tests.py: two pytest processes that share the tests of a small project."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.run_tests import COMPUTE_TESTS, ROOT, run_two, split
from tests.waiting import wait_until_blocking

PROGRAM = """
import signal
from scripts.run_tests import exit_on_sigterm, run_two
signal.signal(signal.SIGTERM, exit_on_sigterm)
run_two("not slow", ["tests/second"])
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\ntestpaths = ["tests"]\naddopts = "-ra"\nmarkers = ["slow: not now"]\n'
    )
    for name in ("second", "first"):
        (tmp_path / "tests" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins are not needed and slow down the start
    return tmp_path


def write(project: Path, name: str, body: str) -> None:
    (project / "tests" / name / f"test_{name}.py").write_text(f"import pytest, time\n{body}\n")


def test_every_test_folder_runs_in_exactly_one_process() -> None:
    first, second = split(COMPUTE_TESTS)
    assert len(set(COMPUTE_TESTS)) == len(COMPUTE_TESTS)
    assert all((ROOT / path).exists() for path in COMPUTE_TESTS)
    assert not any(
        Path(path).is_relative_to(other) for path in COMPUTE_TESTS for other in COMPUTE_TESTS if path != other
    )
    assert first == [f"--ignore={path}" for path in COMPUTE_TESTS]
    assert second[-len(COMPUTE_TESTS) :] == list(COMPUTE_TESTS)


def test_both_processes_run_and_list_skipped_tests(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(project, "second", "def test_a(): pytest.skip('no GPU')\n@pytest.mark.slow\ndef test_b(): raise ValueError")
    write(project, "first", "def test_c(): pytest.skip('no browser')")
    assert run_two("not slow", ["tests/second"]) == 0
    out = capfd.readouterr().out
    assert out.index("no browser") < out.index("no GPU")
    assert out.count("1 skipped") == 2


@pytest.mark.parametrize("failing", ["second", "first"])
def test_failure_in_one_process_fails_the_run_and_an_empty_process_does_not(
    project: Path, capfd: pytest.CaptureFixture[str], failing: str
) -> None:
    for name in ("second", "first"):
        write(project, name, "def test_it(): assert 0" if name == failing else "@pytest.mark.slow\ndef test_it(): ...")
    assert run_two("not slow", ["tests/second"]) == 1
    out = capfd.readouterr().out
    assert f"FAILED tests/{failing}" in out
    assert out.count("had nothing to run") == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [("import os\ndef test_it(): os._exit(9)", 9), ("import no_such_module", 2)],
)
def test_crash_of_pytest_is_a_worse_status_than_a_failed_test(project: Path, body: str, status: int) -> None:
    write(project, "second", body)
    write(project, "first", "def test_it(): assert 0")
    assert run_two("not slow", ["tests/second"]) == status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_reaches_both_processes_and_lets_them_clean_up(project: Path, number: signal.Signals) -> None:
    for name in ("second", "first"):
        clean = f"yield; time.sleep(0.2); open('{name}.cleaned', 'w').close()"
        body = f"open('{name}.started', 'w').close(); time.sleep(60)"
        write(project, name, f"@pytest.fixture\ndef thing(): {clean}\ndef test_it(thing): {body}")
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=project) as process:
        wait_until_blocking(lambda: len(list(project.glob("*.started"))) == 2, 60)
        os.kill(process.pid, number)
        process.wait(60)
    assert sorted(path.name for path in project.glob("*.cleaned")) == ["first.cleaned", "second.cleaned"]
