"""Two processes of pytest that share the tests, in a small project of this test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.run_tests import APART, MOST_FILES_AGAIN, ROOT, run_all, run_two, shares
from tests.waiting import wait_until_blocking

PROGRAM = """
import signal
from scripts.run_tests import end, run_two
signal.signal(signal.SIGTERM, end)
run_two("not slow", ["tests/apart"])
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\ntestpaths = ["tests"]\naddopts = "-ra"\nmarkers = ["slow: not now"]\n'
    )
    for name in ("apart", "others"):
        (tmp_path / "tests" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # these tests need none, and start ten times
    return tmp_path


def write(project: Path, name: str, body: str) -> None:
    (project / "tests" / name / f"test_{name}.py").write_text(f"import pytest, time\n{body}\n")


def test_every_test_file_is_in_one_share_and_only_one() -> None:
    front, beside = shares(APART)
    assert len(set(APART)) == len(APART)
    assert all((ROOT / path).exists() for path in APART)
    assert not any(Path(path).is_relative_to(other) for path in APART for other in APART if path != other)
    assert front == [f"--ignore={path}" for path in APART]
    assert beside[-len(APART) :] == list(APART)


def test_both_shares_run_and_say_what_was_skipped(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(
        project, "apart", "def test_a(): pytest.skip('no moon')\n@pytest.mark.slow\ndef test_slow(): raise ValueError"
    )
    write(project, "others", "def test_o(): pytest.skip('no sun')")
    assert run_two("not slow", ["tests/apart"]) == 0
    out = capfd.readouterr().out
    assert out.index("no sun") < out.index("no moon")
    assert out.count("1 skipped") == 2
    assert "slow" not in out.replace("not slow", "")


@pytest.mark.parametrize("failing", ["apart", "others"])
def test_a_failure_in_either_fails_the_whole_and_nothing_to_run_does_not(
    project: Path, capfd: pytest.CaptureFixture[str], failing: str
) -> None:
    for name in ("apart", "others"):
        write(project, name, "def test_it(): assert 0" if name == failing else "@pytest.mark.slow\ndef test_it(): ...")
    assert run_two("not slow", ["tests/apart"]) == 1
    out = capfd.readouterr().out
    assert f"FAILED tests/{failing}" in out
    assert out.count("had nothing to run") == 1


CHANCES = """
@pytest.mark.parametrize("n", range({most}))
def test_chance(n):
    try: open({name!r} + str(n), "x").close()
    except FileExistsError: return
    assert 0
"""


@pytest.mark.parametrize("apart", [["tests/apart"], []])
def test_what_fails_once_and_passes_alone_is_named(
    project: Path, capfd: pytest.CaptureFixture[str], apart: list[str]
) -> None:
    write(project, "apart", CHANCES.format(name="was.apart", most=9))  # as if its fixture had failed
    write(
        project, "others", CHANCES.format(name="was.others", most=1) + "def test_calm(): open('calm', 'a').write('.')"
    )
    assert run_all("not slow", apart) == 0
    out = capfd.readouterr().out
    named = out.partition("FAILED ONCE AND PASSED ALONE")[2].split()
    assert {name for name in named if "::" in name} == {
        "tests/others/test_others.py::test_chance[0]",
        *(f"tests/apart/test_apart.py::test_chance[{n}]" for n in range(9)),
    }
    assert (project / "calm").read_text() == "."


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("def test_it(): assert 0", 1),  # fails again
        ("import os\ndef test_other(): assert 0\ndef test_it(): os._exit(9)", 9),  # no test's failure
        ("import nothing_of_that_name", 2),
    ],
)
def test_nothing_else_gets_a_second_chance_or_passes_by_it(project: Path, body: str, status: int) -> None:
    write(project, "apart", body)
    write(project, "others", CHANCES.format(name="was.others", most=1))
    assert run_all("not slow", ["tests/apart"]) == status


def test_what_fails_in_many_files_is_no_chance(project: Path) -> None:
    for number in range(MOST_FILES_AGAIN + 1):
        body = CHANCES.format(name=f"was.{number}.", most=1)
        (project / f"tests/others/test_{number}.py").write_text(f"import pytest\n{body}")
    assert run_all("not slow", []) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_reaches_both_and_lets_them_clean_up(project: Path, number: signal.Signals) -> None:
    for name in ("apart", "others"):
        clean = f"yield; time.sleep(0.2); open('{name}.cleaned', 'w').close()"
        body = f"open('{name}.started', 'w').close(); time.sleep(60)"  # the fixture is there by then
        write(project, name, f"@pytest.fixture\ndef thing(): {clean}\ndef test_it(thing): {body}")
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=project) as process:
        wait_until_blocking(lambda: len(list(project.glob("*.started"))) == 2, 60)
        os.kill(process.pid, number)
        process.wait(60)
    assert sorted(path.name for path in project.glob("*.cleaned")) == ["apart.cleaned", "others.cleaned"]
