"""`make figures`: what tests note becomes each promise's one line, and only while they pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import measure_promises
from scripts.measure_promises import summed_up

PROMISE = {"id": "P6", "tests": ["tests/a.py", "tests/b.py"]}
NOTED = [{"promise": id_, "figure": figure} for id_, figure in (("P6", "0 lost"), ("T4", "1 s"), ("P6", "0 double"))]
GOOD = {"tests/a.py": "3 passed, 0 failed, 1 skipped", "tests/b.py": "2 passed, 0 failed, 0 skipped"}


def test_what_was_noted_of_a_promise_is_one_line_with_how_many_tests_passed():
    line = summed_up(PROMISE, [*NOTED, NOTED[0]], GOOD)
    assert line is not None
    assert (line["promise"], line["figure"]) == ("P6", "0 lost; 0 double; 5 tests passed")
    assert line.keys() == {"promise", "figure", "command", "at", "commit"}


@pytest.mark.parametrize(
    "runs",
    [
        {},
        {"tests/a.py": "3 passed, 0 failed, 0 skipped"},
        GOOD | {"tests/b.py": "2 passed, 1 failed, 0 skipped"},
        dict.fromkeys(GOOD, "0 passed, 0 failed, 2 skipped"),
    ],
)
def test_of_a_promise_that_was_not_proven_nothing_is_noted(runs: dict[str, str]):
    assert summed_up(PROMISE, NOTED, runs) is None


def test_the_newest_line_of_a_promise_takes_the_place_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "figures.jsonl"
    gone = {"promise": "P0", "figure": "1", "command": "", "at": "", "commit": ""}
    path.write_text(json.dumps(gone) + "\n")
    for id_, figure in (("T4", "2 s"), ("P1", "500 of 500"), ("T4", "1 s")):
        assert measure_promises.main([id_, "--note", figure, "--command", "x", "--into", str(path)]) == 0
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["promise"], line["figure"]) for line in kept] == [("P1", "500 of 500"), ("T4", "1 s")]
    with pytest.raises(SystemExit):
        measure_promises.main(["P99"])
    assert "no promise P99" in capsys.readouterr().err
