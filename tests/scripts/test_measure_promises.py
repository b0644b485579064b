"""scripts/measure_promises.py: recorded figures become one line per promise, only if all of its tests pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import measure_promises
from scripts.measure_promises import summarize

PROMISE = {"id": "P6", "tests": ["tests/a.py", "tests/b.py"]}
RECORDED = [
    {"promise": id_, "figure": figure} for id_, figure in (("P6", "0 lost"), ("T4", "1 s"), ("P6", "0 duplicates"))
]
PASSED = {"tests/a.py": "3 passed, 0 failed, 1 skipped", "tests/b.py": "2 passed, 0 failed, 0 skipped"}


def test_recorded_figures_of_a_promise_become_one_line():
    line = summarize(PROMISE, [*RECORDED, RECORDED[0]], PASSED)
    assert line is not None
    assert (line["promise"], line["figure"]) == ("P6", "0 lost; 0 duplicates")
    assert line.keys() == {"promise", "figure", "command", "at", "commit"}


@pytest.mark.parametrize(
    "runs",
    [
        {},
        {"tests/a.py": "3 passed, 0 failed, 0 skipped"},
        PASSED | {"tests/b.py": "2 passed, 1 failed, 0 skipped"},
        dict.fromkeys(PASSED, "0 passed, 0 failed, 2 skipped"),
    ],
)
def test_promise_without_proof_gets_no_figure(runs: dict[str, str]):
    assert summarize(PROMISE, RECORDED, runs) is None


def test_promise_whose_tests_record_nothing_gets_no_figure():
    assert summarize(PROMISE, RECORDED[1:2], PASSED) is None


def test_passed_test_cases_are_counted_if_the_promise_names_them():
    line = summarize(PROMISE | {"counted": "cases: 0 lost"}, RECORDED[1:2], PASSED)
    assert line is not None
    assert line["figure"] == "5 cases: 0 lost"


def test_newest_figure_of_a_promise_replaces_older_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "figures.jsonl"
    removed = {"promise": "P0", "figure": "1", "command": "", "at": "", "commit": ""}
    path.write_text(json.dumps(removed) + "\n")
    for id_, figure in (("T4", "2 s"), ("P1", "500 of 500"), ("T4", "1 s")):
        assert measure_promises.main([id_, "--note", figure, "--command", "x", "--into", str(path)]) == 0
    stored = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["promise"], line["figure"]) for line in stored] == [("P1", "500 of 500"), ("T4", "1 s")]
    with pytest.raises(SystemExit):
        measure_promises.main(["P99"])
    assert "no promise P99" in capsys.readouterr().err
