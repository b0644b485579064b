"""`hearth operator` and `hearth dashboard`: what operators sign in with."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import main
from local_platform.data_dir import DataDir
from storage.database import Database
from tenants import operators
from tenants.credentials.passwords import PasswordVerifier
from tenants.operators import Operator

Hearth = Callable[..., Any]
PASSWORD = "correct horse battery"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return False


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(text))


def stored(data: Path, email: str) -> Operator:
    async def read() -> Operator | None:
        database = Database.connect(DataDir(data).environ()["DATABASE_URL"])
        try:
            return await operators.find_by_email(database, email)
        finally:
            await database.close()

    found = asyncio.run(read())
    assert found is not None
    return found


def has_password(data: Path, email: str, password: str) -> bool:
    return asyncio.run(PasswordVerifier().is_correct(password, stored(data, email).password_hash))


def test_operator_is_added_with_a_password_from_standard_input(
    hearth: Hearth, data: Path, monkeypatch: pytest.MonkeyPatch
):
    account_id = hearth("account", "create", "acme")["account_id"]
    stdin(monkeypatch, f"{PASSWORD}\nmore\n")
    added = hearth(
        "operator", "add", "Ann@Example.org", "--role", "viewer", "--account", account_id, "--account-role", "developer"
    )
    assert (added["email"], added["platform_role"], added["has_password"]) == ("ann@example.org", "viewer", True)
    assert added["account_roles"] == {account_id: "developer"}
    assert "password" not in added
    assert has_password(data, "ann@example.org", PASSWORD)
    assert stored(data, "ann@example.org").password_hash.startswith("$argon2id$")  # type: ignore[union-attr]
    assert [row["email"] for row in hearth("operator", "list")] == ["ann@example.org"]


def test_generated_password_is_printed_once_and_replaced_by_a_reset(hearth: Hearth, data: Path):
    first = hearth("operator", "add", "bob@example.org", "--role", "administrator", "--generate")["password"]
    assert has_password(data, "bob@example.org", first)
    second = hearth("operator", "reset", "bob@example.org", "--generate")["password"]
    assert second != first
    assert has_password(data, "bob@example.org", second)
    assert not has_password(data, "bob@example.org", first)
    assert stored(data, "bob@example.org").session_generation == 1, "the reset ended the sessions"
    assert "password" not in hearth("operator", "list")[0]


def test_removed_operator_keeps_the_memberships(hearth: Hearth, data: Path):
    account_id = hearth("account", "create", "acme")["account_id"]
    hearth("operator", "add", "eve@example.org", "--role", "viewer", "--account", account_id, "--generate")
    removed = hearth("operator", "remove", "eve@example.org")
    assert (removed["platform_role"], removed["has_password"]) == (None, False)
    assert removed["account_roles"] == {account_id: "administrator"}
    assert hearth("operator", "list") == []
    again = hearth(
        "operator", "add", "eve@example.org", "--account", account_id, "--account-role", "viewer", "--generate"
    )
    assert again["account_roles"] == {account_id: "viewer"}


@pytest.mark.parametrize(
    ("arguments", "password", "message"),
    [
        (("add", "ann@example.org"), PASSWORD, "pass --role, --account or both"),
        (("add", "ann", "--role", "viewer"), PASSWORD, "email must have the form"),
        (("add", "ann@example.org", "--role", "viewer"), "short", "12 to 256 characters (got 5)"),
        (("add", "ann@example.org", "--role", "viewer"), "", "standard input has no password"),
    ],
)
def test_invalid_operator_is_rejected(
    hearth: Hearth, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], password: str, message: str
):
    stdin(monkeypatch, f"{password}\n")
    assert message in hearth("operator", *arguments, status=2)
    assert hearth("operator", "list") == []


def test_unknown_operator_or_account_is_named(hearth: Hearth):
    assert "no user nobody@example.org" in hearth("operator", "remove", "nobody@example.org", status=1)
    assert "no user nobody@example.org" in hearth("operator", "reset", "nobody@example.org", "--generate", status=1)
    missing = "f" * 32
    said = hearth("operator", "add", "ann@example.org", "--account", missing, "--generate", status=1)
    assert f"no account {missing}" in said


def test_dashboard_prints_a_link_for_the_local_administrator(hearth: Hearth, data: Path):
    assert "no platform runs" in hearth("dashboard", status=1)
    DataDir(data).write_dev({"base_url": "http://127.0.0.1:8787/client/v4"})
    link = hearth("dashboard")["sign_in_link"]
    origin, _, token = link.partition("/dashboard/link#")
    assert origin == "http://127.0.0.1:8787"

    async def use() -> Operator | None:
        secrets = DataDir(data).read_secrets()
        database = Database.connect(DataDir(data).environ()["DATABASE_URL"])
        try:
            return await operators.use_link(database, bytes.fromhex(secrets.keys["HEARTH_TOKEN_PEPPER"]), token)
        finally:
            await database.close()

    user = asyncio.run(use())
    assert user is not None
    assert (user.email, user.platform_role) == ("admin@localhost", "administrator")
    hearth("operator", "remove", "admin@localhost")
    assert "hearth operator add admin@localhost" in hearth("dashboard", status=1)


def test_dashboard_of_another_user_needs_an_existing_user(hearth: Hearth):
    url = ("--url", "https://hearth.example/")
    assert "no user ann@example.org" in hearth("dashboard", "--email", "ann@example.org", *url, status=1)
    hearth("operator", "add", "ann@example.org", "--role", "viewer", "--generate")
    link = hearth("dashboard", "--email", "ann@example.org", *url)["sign_in_link"]
    assert link.startswith("https://hearth.example/dashboard/link#cfl_")


def test_password_is_not_accepted_as_an_argument(capsys: pytest.CaptureFixture[str]):
    """Arguments are visible to all users of the machine and stay in the shell's history."""
    assert main.run(["operator", "add", "ann@example.org", "--password", PASSWORD]) == 2
    assert PASSWORD not in capsys.readouterr().out
