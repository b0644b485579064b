"""`hearth audit` and `hearth evidence`: a record that is whole, one that was touched, and the pack for an auditor."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import sqlite3
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import figures
from cli import evidence, main

Hearth = Callable[..., Any]
Capture = pytest.CaptureFixture[str]


def fails(data: Path, capsys: Capture, *arguments: str, says: str) -> bool:
    """Whether a command fails so, after what it prints all the same."""
    status = main.run([*arguments, "--data", str(data), "--json"])
    return status == 1 and says in capsys.readouterr().err


@pytest.fixture
def account_id(hearth: Hearth) -> str:
    """An account to which a few things were done."""
    account_id: str = hearth("account", "create", "acme")["account_id"]
    hearth("token", "create", "--account", account_id, "--name", "laptop")
    assert hearth("account", "region", account_id, "DE,eu")["region"] == {"countries": ["DE"], "jurisdictions": ["eu"]}
    assert hearth("account", "retention", account_id, "zero")["retention"] == "zero"
    return account_id


def tamper(data: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(data / "hearth.db")) as connection:
        for trigger in ("audit_entries_no_update", "audit_entries_no_delete"):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(statement)
        connection.commit()


def test_a_record_is_whole_until_a_hand_is_on_the_database(
    hearth: Hearth, data: Path, account_id: str, capsys: Capture
):
    found = hearth("audit", "verify")
    assert (found["entries"], found["is_whole"], found["problems"]) == (4, True, [])
    actions = [entry["action"] for entry in hearth("audit", "list", account_id)]
    assert actions == ["account.retention", "account.region", "api_token.create", "account.create"]
    tamper(data, "UPDATE audit_entries SET detail = 'standard' WHERE action = 'account.retention'")
    assert fails(data, capsys, "audit", "verify", says="entry 4 (account.retention) is not what was written")


def test_what_was_cut_off_is_missed_by_a_head_noted_before(
    hearth: Hearth, data: Path, account_id: str, tmp_path: Path, capsys: Capture
):
    heads = tmp_path / "heads.jsonl"
    head = hearth("audit", "head", "--into", str(heads))
    assert head["sequence"] == 4
    assert hearth("audit", "verify", "--heads", str(heads))["noted_heads"] == 1
    tamper(data, "DELETE FROM audit_entries WHERE sequence = 4")
    with contextlib.closing(sqlite3.connect(data / "hearth.db")) as connection:
        newest = "SELECT digest FROM audit_entries WHERE sequence = 3"
        connection.execute(f"UPDATE audit_head SET sequence = 3, digest = ({newest})")
        connection.commit()
    assert hearth("audit", "verify")["is_whole"]
    assert fails(data, capsys, "audit", "verify", "--heads", str(heads), says="entry 4 is missing")
    heads.write_text("nothing\n")
    assert "line 1 of" in hearth("audit", "verify", "--heads", str(heads), status=1)
    heads.write_text("")
    assert "holds no head" in hearth("audit", "verify", "--heads", str(heads), status=1)


def test_a_region_or_retention_that_makes_no_sense_is_refused(hearth: Hearth, account_id: str):
    assert hearth("account", "region", account_id, "anywhere")["region"] is None
    hearth("account", "region", account_id, "germany!", status=2)
    hearth("account", "retention", account_id, "never", status=2)
    hearth("account", "retention", "f" * 32, "zero", status=1)


def test_the_evidence_is_a_folder_that_an_auditor_can_check(
    hearth: Hearth, data: Path, account_id: str, tmp_path: Path
):
    out, record = tmp_path / "evidence", tmp_path / "run.xml"
    record.write_text(
        '<testsuites><testsuite><testcase classname="tests.tenants.audit.test_audit_log" name="a"/>'
        '<testcase classname="tests.tenants.audit.test_audit_log" name="b"><failure/></testcase>'
        "</testsuite></testsuites>"
    )
    secret = hearth("token", "create", "--account", account_id, "--name", "=cmd()")["secret"]
    made = hearth("evidence", str(out), "--tests", str(record))
    assert made["audit_is_whole"]
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
    for path in out.iterdir():
        text = path.read_text()
        assert secret not in text
        assert all(key not in text for key in json.loads((data / "secrets.json").read_text()).get("keys", {}).values())
    assert "is not empty" in hearth("evidence", str(out), status=1)
    record.write_text("<x")
    assert "no record of a test run" in hearth("evidence", str(tmp_path / "other"), "--tests", str(record), status=1)


def test_the_pack_is_written_and_says_so_when_the_audit_is_not_whole(
    data: Path, account_id: str, tmp_path: Path, capsys: Capture
):
    tamper(data, "DELETE FROM audit_entries WHERE sequence = 2")
    assert fails(data, capsys, "evidence", str(tmp_path / "pack"), says="the audit is not whole")
    assert json.loads((tmp_path / "pack" / "audit.json").read_text())["problems"] == ["entries 2 to 2 are missing"]


def test_the_pack_carries_what_was_measured_last(
    hearth: Hearth, account_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What is shipped, and before it what the operator measured; a line that is no figure is named."""
    shipped, own = tmp_path / "shipped.jsonl", tmp_path / "own.jsonl"
    monkeypatch.setattr(evidence, "FIGURES", shipped)
    figures.record("P6", "not wanted", "nothing")
    for path, told in ((shipped, ("P6", "9,999 rows")), (shipped, ("T4", "1.2 s")), (own, ("P6", "10,000 rows"))):
        monkeypatch.setenv("HEARTH_FIGURES", str(path))
        figures.record(*told, "pytest this")
    hearth("evidence", str(tmp_path / "pack"), "--figures", str(own))
    rows = {row["id"]: row for row in json.loads((tmp_path / "pack" / "promises.json").read_text())}
    assert rows["P6"]["measured"]["figure"] == "10,000 rows"
    assert rows["P6"]["last_figure"].startswith("10,000 rows (20")
    assert rows["T4"]["measured"]["figure"] == "1.2 s"
    assert rows["P20"]["last_figure"] == "none yet"
    read = (tmp_path / "pack" / "promises.md").read_text()
    assert "10,000 rows" in read
    assert "9,999" not in read
    shipped.write_text('{"promise": "P6"}\n')
    assert "line 1 of" in hearth("evidence", str(tmp_path / "other"), status=1)
    assert "no file" in hearth("evidence", str(tmp_path / "third"), "--figures", str(tmp_path / "none"), status=1)


def test_every_figure_is_of_a_promise():
    known = {promise["id"] for promise in evidence.read_promises()}
    assert evidence.read_figures(evidence.FIGURES).keys() == known


def test_every_promise_names_tests_that_there_are():
    root = Path(__file__).parents[2]
    told = tomllib.loads(evidence.PROMISES.read_text())
    assert len(told["fault"]) > 15
    missing = [
        file for row in [*told["promise"], *told["fault"]] for file in row["tests"] if not (root / file).is_file()
    ]
    assert missing == []
