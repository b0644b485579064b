import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from cli.output import print_failure, print_record, print_rows

ROWS = [{"name": "acme [red]", "at": datetime(2026, 1, 2, tzinfo=UTC), "is_on": True, "tags": ["a", "b"], "gone": None}]


def test_json_rows_have_all_fields(capsys: pytest.CaptureFixture[str]):
    print_rows(ROWS, ("name",), is_json=True, empty="none")
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "name": "acme [red]",
        "at": "2026-01-02 00:00:00+00:00",
        "is_on": True,
        "tags": ["a", "b"],
        "gone": None,
    }


def test_table_has_the_given_columns_and_prints_markup_as_text(capsys: pytest.CaptureFixture[str]):
    print_rows(ROWS, ("name", "is_on", "tags", "gone"), is_json=False, empty="none")
    out = capsys.readouterr().out
    assert "acme [red]" in out
    assert "a, b" in out
    assert "2026" not in out


def test_record_has_times_to_the_second_and_numbers_without_an_exponent(capsys: pytest.CaptureFixture[str]):
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2)))
    print_record({"at": at, "usd": 1e-06, "none": 0.0, "ten": 10.0, "empty": {}, "limits": ""}, is_json=False)
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines == {
        "at": "2026-01-02 01:04:05 UTC", "usd": "0.000001", "none": "0", "ten": "10", "empty": "-", "limits": "-",
    }  # fmt: skip


def test_long_cells_are_not_wrapped_in_a_pipe(capsys: pytest.CaptureFixture[str]):
    print_rows([{"a": "x" * 90, "b": "y" * 90}], ("a", "b"), is_json=False, empty="none")
    assert any("x" * 90 in line and "y" * 90 in line for line in capsys.readouterr().out.splitlines())


def test_no_rows_are_a_message_or_an_empty_list(capsys: pytest.CaptureFixture[str]):
    print_rows([], ("a",), is_json=False, empty="no rows yet")
    print_rows([], ("a",), is_json=True, empty="no rows yet")
    assert capsys.readouterr().out == "no rows yet\n[]\n"


def test_record_is_printed_as_lines_or_as_a_json_object(capsys: pytest.CaptureFixture[str]):
    print_record({"id": 1, "longer": "x"}, is_json=False)
    print_record({"id": 1}, is_json=True)
    assert capsys.readouterr().out == 'id      1\nlonger  x\n{"id": 1}\n'


def test_failure_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]):
    print_failure("it broke", 1, is_json=False)
    print_failure("it broke", 2, is_json=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = captured.err.splitlines()
    assert first == "hearth: it broke"
    assert json.loads(second) == {"error": {"message": "it broke", "exit_code": 2}}
