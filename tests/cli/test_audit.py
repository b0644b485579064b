"""`hearth audit`: an intact audit log, a changed one, and one with missing entries."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import main

Hearth = Callable[..., Any]
Capture = pytest.CaptureFixture[str]


def fails(data: Path, capsys: Capture, *arguments: str, message: str) -> bool:
    """Return True if a command prints its result, and then fails with this message."""
    status = main.run([*arguments, "--data", str(data), "--json"])
    return status == 1 and message in capsys.readouterr().err


@pytest.fixture
def account_id(hearth: Hearth) -> str:
    """An account with four audit entries."""
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


def test_verify_detects_a_changed_entry(hearth: Hearth, data: Path, account_id: str, capsys: Capture):
    found = hearth("audit", "verify")
    assert (found["entries"], found["is_intact"], found["problems"]) == (4, True, [])
    actions = [entry["action"] for entry in hearth("audit", "list", account_id)]
    assert actions == ["account.retention", "account.region", "api_token.create", "account.create"]
    tamper(data, "UPDATE audit_entries SET detail = 'standard' WHERE action = 'account.retention'")
    assert fails(data, capsys, "audit", "verify", message="entry 4 (account.retention) was changed")


def test_verify_detects_missing_newest_entries_with_a_recorded_head(
    hearth: Hearth, data: Path, account_id: str, tmp_path: Path, capsys: Capture
):
    heads = tmp_path / "heads.jsonl"
    head = hearth("audit", "head", "--into", str(heads))
    assert head["sequence"] == 4
    assert hearth("audit", "verify", "--heads", str(heads))["recorded_heads"] == 1
    tamper(data, "DELETE FROM audit_entries WHERE sequence = 4")
    with contextlib.closing(sqlite3.connect(data / "hearth.db")) as connection:
        newest = "SELECT digest FROM audit_entries WHERE sequence = 3"
        connection.execute(f"UPDATE audit_head SET sequence = 3, digest = ({newest})")
        connection.commit()
    assert hearth("audit", "verify")["is_intact"]
    assert fails(data, capsys, "audit", "verify", "--heads", str(heads), message="entry 4 is missing")
    heads.write_text("nothing\n")
    assert "line 1 of" in hearth("audit", "verify", "--heads", str(heads), status=1)
    heads.write_text("")
    assert "has no head" in hearth("audit", "verify", "--heads", str(heads), status=1)


def test_invalid_region_or_retention_is_rejected(hearth: Hearth, account_id: str):
    assert hearth("account", "region", account_id, "anywhere")["region"] is None
    hearth("account", "region", account_id, "germany!", status=2)
    hearth("account", "retention", account_id, "never", status=2)
    hearth("account", "retention", "f" * 32, "zero", status=1)
