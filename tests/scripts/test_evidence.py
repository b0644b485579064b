"""scripts/evidence.py: the evidence pack for auditors; scripts/promises.toml and figures.jsonl."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

from bench import figures
from scripts import evidence
from scripts.promises import FIGURES, read_faults, read_figures, read_promises

Hearth = Callable[..., Any]
app = typer.Typer()
app.command()(evidence.main)


@pytest.fixture
def pack(data: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run scripts.evidence, check its exit status, and return its output or its error message."""

    def run(*arguments: str, status: int = 0) -> Any:
        assert (app([*arguments, "--data", str(data), "--json"], standalone_mode=False) or 0) == status
        captured = capsys.readouterr()
        return json.loads(captured.err)["error"]["message"] if status else json.loads(captured.out)

    return run


@pytest.fixture
def account_id(hearth: Hearth) -> str:
    account_id: str = hearth("account", "create", "acme")["account_id"]
    hearth("token", "create", "--account", account_id, "--name", "laptop")
    hearth("account", "region", account_id, "DE,eu")
    hearth("account", "retention", account_id, "zero")
    return account_id


def test_pack_has_audit_log_and_inventories_without_secrets(
    hearth: Hearth, pack: Callable[..., Any], data: Path, account_id: str, tmp_path: Path
):
    out, report = tmp_path / "evidence", tmp_path / "run.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.tenants.audit.test_audit_log" name="a"/>'
        '<testcase classname="tests.tenants.audit.test_audit_log" name="b"><failure/></testcase>'
        "</testsuite></testsuites>"
    )
    secret = hearth("token", "create", "--account", account_id, "--name", "=cmd()")["secret"]
    assert pack(str(out), "--tests", str(report))["audit_is_intact"]
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    entries = [json.loads(line) for line in (out / "audit.jsonl").read_text().splitlines()]
    assert [entry["sequence"] for entry in entries] == [1, 2, 3, 4, 5]
    (account,) = csv.DictReader(io.StringIO((out / "accounts.csv").read_text()))
    assert (account["retention"], json.loads(account["region"])["jurisdictions"]) == ("zero", ["eu"])
    tokens = list(csv.DictReader(io.StringIO((out / "tokens.csv").read_text())))
    assert tokens[0]["permissions"] == "Workers AI Read; Workers AI Write"
    assert tokens[1]["name"] == "'=cmd()"
    promises = {row["id"]: row for row in json.loads((out / "promises.json").read_text())}
    first = {"file": "tests/tenants/audit/test_audit_log.py", "run": "1 passed, 1 failed, 0 skipped"}
    assert promises["T18"]["tests"][0] == first
    stored = json.loads((data / "secrets.json").read_text())
    for path in out.iterdir():
        text = path.read_text()
        assert secret not in text
        assert all(value not in text for name, value in stored.items() if name.startswith("HEARTH_"))


def test_existing_files_and_invalid_reports_are_rejected(pack: Callable[..., Any], account_id: str, tmp_path: Path):
    out, report = tmp_path / "evidence", tmp_path / "run.xml"
    pack(str(out))
    assert "is not empty" in pack(str(out), status=1)
    report.write_text("<x")
    assert "not a JUnit XML report" in pack(str(tmp_path / "other"), "--tests", str(report), status=1)


def test_pack_is_written_and_fails_if_the_audit_log_is_not_intact(
    data: Path, account_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with closing(sqlite3.connect(data / "hearth.db")) as connection:
        connection.execute("DROP TRIGGER audit_entries_no_update")
        connection.execute("DROP TRIGGER audit_entries_no_delete")
        connection.execute("DELETE FROM audit_entries WHERE sequence = 2")
        connection.commit()
    assert app([str(tmp_path / "pack"), "--data", str(data)], standalone_mode=False) == 1
    assert "the audit log is not intact" in capsys.readouterr().err
    assert json.loads((tmp_path / "pack" / "audit.json").read_text())["problems"] == ["entries 2 to 2 are missing"]


def test_own_figures_take_precedence_over_the_checked_in_ones(
    pack: Callable[..., Any], account_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checked_in, own = tmp_path / "checked_in.jsonl", tmp_path / "own.jsonl"
    monkeypatch.setattr(evidence, "FIGURES", checked_in)
    figures.record("P6", "not recorded: HEARTH_FIGURES is not set", "nothing")
    for path, line in (
        (checked_in, ("P6", "9,999 rows")),
        (checked_in, ("T4", "1.2 s")),
        (own, ("P6", "10,000 rows")),
    ):
        monkeypatch.setenv("HEARTH_FIGURES", str(path))
        figures.record(*line, "pytest this")
    pack(str(tmp_path / "pack"), "--figures", str(own))
    rows = {row["id"]: row for row in json.loads((tmp_path / "pack" / "promises.json").read_text())}
    assert rows["P6"]["measured"]["figure"] == "10,000 rows"
    assert rows["P6"]["last_figure"].startswith("10,000 rows (20")
    assert rows["T4"]["measured"]["figure"] == "1.2 s"
    assert rows["P20"]["last_figure"] == "none yet"
    table = (tmp_path / "pack" / "promises.md").read_text()
    assert "10,000 rows" in table
    assert "9,999" not in table
    checked_in.write_text('{"promise": "P6"}\n')
    assert "line 1 of" in pack(str(tmp_path / "other"), status=1)
    assert "is not a file" in pack(str(tmp_path / "third"), "--figures", str(tmp_path / "none"), status=1)


def test_every_figure_belongs_to_a_promise():
    assert read_figures(FIGURES).keys() <= {promise["id"] for promise in read_promises()}


def test_every_promise_and_fault_names_existing_tests():
    root = Path(__file__).parents[2]
    rows = [*read_promises(), *read_faults()]
    assert len(rows) > 40
    assert [file for row in rows for file in row["tests"] if not (root / file).is_file()] == []
