import asyncio
import importlib.util
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.output import CommandFailed
from cli.token import parse_expiry
from local_platform.data_dir import DataDir, Secrets
from storage.database import Database
from tenants.credentials.api_token_text import parse_secret
from tenants.usage import usage_entries as usage
from tenants.usage.usage_entries import UsageEntry
from tests.waiting import wait_for_a_day_that_lasts

Hearth = Callable[..., Any]
UNKNOWN = "f" * 32


def test_account_is_created_and_listed(hearth: Hearth):
    made = hearth("account", "create", "acme")
    assert made["name"] == "acme"
    assert made["status"] == "active"
    assert len(made["account_id"]) == 32
    assert hearth("account", "list") == [made]


def test_account_with_a_given_id_is_created_once(hearth: Hearth):
    assert hearth("account", "create", "acme", "--id", "a" * 32)["account_id"] == "a" * 32
    assert "already" in hearth("account", "create", "other", "--id", "a" * 32, status=1)


def test_invalid_account_id_or_name_is_rejected(hearth: Hearth):
    hearth("account", "create", "acme", "--id", "nope", status=2)
    hearth("account", "create", "  ", status=2)


def test_account_is_blocked_and_unblocked(hearth: Hearth):
    account_id = hearth("account", "create", "acme")["account_id"]
    assert hearth("account", "block", account_id)["status"] == "blocked"
    assert hearth("account", "unblock", account_id)["status"] == "active"
    assert "no account" in hearth("account", "block", UNKNOWN, status=1)


def test_token_secret_is_shown_only_at_creation(hearth: Hearth):
    account_id = hearth("account", "create", "acme")["account_id"]
    made = hearth("token", "create", "--account", account_id, "--name", "laptop")
    assert parse_secret(made["secret"])
    assert made["groups"] == ["Workers AI Read", "Workers AI Write"]
    (listed,) = hearth("token", "list", "--account", account_id)
    assert listed == {key: value for key, value in made.items() if key != "secret"}


def test_token_has_the_given_permissions_expiry_and_kind(hearth: Hearth):
    account_id = hearth("account", "create", "acme")["account_id"]
    options = ("--permission", "workers ai read", "--expires", "30d", "--kind", "account")
    made = hearth("token", "create", "--account", account_id, *options)
    assert made["secret"].startswith("cfat_")
    assert made["groups"] == ["Workers AI Read"]
    left = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)


def test_revoked_token_is_listed_as_revoked(hearth: Hearth):
    account_id = hearth("account", "create", "acme")["account_id"]
    token_id = hearth("token", "create", "--account", account_id)["api_token_id"]
    assert hearth("token", "revoke", token_id, "--account", account_id)["status"] == "revoked"
    assert [row["status"] for row in hearth("token", "list", "--account", account_id)] == ["revoked"]


def test_account_cannot_revoke_a_token_of_another_account(hearth: Hearth):
    mine, other = (hearth("account", "create", name)["account_id"] for name in ("acme", "other"))
    token_id = hearth("token", "create", "--account", mine)["api_token_id"]
    assert "no API token" in hearth("token", "revoke", token_id, "--account", other, status=1)
    assert [row["status"] for row in hearth("token", "list", "--account", mine)] == ["active"]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (("--account", UNKNOWN), 1),
        ((), 2),
        (("--account", UNKNOWN, "--permission", "Everything"), 2),
        (("--account", UNKNOWN, "--expires", "soon"), 2),
        (("--account", UNKNOWN, "--expires", "2001-01-01"), 2),
        (("--account", UNKNOWN, "--kind", "robot"), 2),
    ],
)
def test_invalid_token_options_are_rejected(hearth: Hearth, options: tuple[str, ...], status: int):
    message = hearth("token", "create", *options, status=status)
    assert message
    assert "\n" not in message


def test_default_account_is_the_first_one(hearth: Hearth, data: Path):
    data_dir = DataDir(data)
    account_id = hearth("account", "create", "first")["account_id"]
    data_dir.write_secrets(Secrets(data_dir.ensure_secrets().keys, account_id, "cfut_x"))
    assert hearth("token", "create")["account_id"] == account_id


def test_usage_is_summed_by_account(hearth: Hearth, data: Path):
    wait_for_a_day_that_lasts(30)
    account_id, today = hearth("account", "create", "acme")["account_id"], datetime.now(UTC).date()
    asyncio.run(_write_usage(data, account_id, num_calls=3))
    asyncio.run(_write_usage(data, UNKNOWN, num_calls=2))
    (row,) = hearth("usage", "--account", account_id)
    assert row["model"] == "@cf/test/chat"
    assert (row["num_calls"], row["prompt_tokens"], row["neurons"]) == (3, 30, 4.5)
    (row,) = hearth("usage", "--account", account_id, "--by", "day")
    assert date.fromisoformat(row["day"]) == today
    assert hearth("usage", "--account", account_id, "--until", "2001-01-01", "--since", "2000-01-01") == []


def test_usage_export_latency_and_forecast(hearth: Hearth, data: Path, tmp_path: Path):
    wait_for_a_day_that_lasts(30)
    account_id = hearth("account", "create", "files")["account_id"]
    asyncio.run(_write_usage(data, account_id, num_calls=3))
    of = ("--account", account_id)
    result = hearth("usage", *of, "--export", str(tmp_path / "calls.csv"))
    assert result["bytes"] == (tmp_path / "calls.csv").stat().st_size > 100
    has_pyarrow = importlib.util.find_spec("pyarrow") is not None
    hearth("usage", *of, "--export", str(tmp_path / "calls.parquet"), status=0 if has_pyarrow else 1)
    assert (tmp_path / "calls.parquet").exists() == has_pyarrow
    hearth("usage", *of, "--export", str(tmp_path / "calls.xls"), status=2)
    (row,) = hearth("usage", *of, "--latency")
    assert row["total_ms"] == [2.0, 2.0, 2.0]
    assert hearth("usage", *of, "--forecast")["used_neurons"] == 4.5
    assert account_id in {row["account"] for row in hearth("usage", "--by", "account")}
    assert hearth("usage", *of, "--status", "timeout") == []


def test_budgets_are_set_listed_and_removed(hearth: Hearth):
    of = ("--account", hearth("account", "create", "thrifty")["account_id"])
    made = hearth("budget", "set", "25.5", *of, "--unit", "usd", "--alerts", "90")
    assert (made["amount"], made["refuses"], made["alert_percents"]) == (25.5, True, [90])
    assert hearth("budget", "list", *of) == [made]
    assert hearth("budget", "alerts", *of) == []
    hearth("budget", "set", "0", *of, status=2)
    assert "no API token" in hearth("budget", "set", "1", *of, "--token", UNKNOWN, status=1)
    hearth("budget", "remove", *of, status=1)
    assert hearth("budget", "remove", *of, "--unit", "usd")["unit"] == "usd"
    assert hearth("budget", "list", *of) == []


@pytest.mark.parametrize("options", [("--since", "yesterday"), ("--since", "2026-02-02", "--until", "2026-02-01")])
def test_invalid_period_is_rejected(hearth: Hearth, options: tuple[str, ...]):
    hearth("usage", "--account", UNKNOWN, *options, status=2)


def test_expiry_is_a_period_or_a_time_in_the_future():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_expiry("90m", now) == now + timedelta(minutes=90)
    assert parse_expiry("2026-02-01T00:00:00", now) == datetime(2026, 2, 1, tzinfo=UTC)
    assert parse_expiry("2026-02-01T00:00:00+01:00", now) == datetime(2026, 1, 31, 23, tzinfo=UTC)
    for text in ("0d", "2025-12-31", "1w", ""):
        with pytest.raises(CommandFailed):
            parse_expiry(text, now)


async def _write_usage(data: Path, account_id: str, num_calls: int) -> None:
    entries = [
        UsageEntry(
            request_id=f"{account_id}-{index}",
            account_id=account_id,
            api_token_id="t" * 32,
            model="@cf/test/chat",
            revision="r",
            task="text-generation",
            pop="local",
            node_id="n",
            status="stop",
            prompt_tokens=10,
            cached_tokens=0,
            completion_tokens=5,
            started_at=datetime.now(UTC),
            ttft_ms=1.0,
            duration_ms=2.0,
            attempts=1,
            micro_neurons=1_500_000,
            is_stream=False,
        )
        for index in range(num_calls)
    ]
    database = Database.connect(DataDir(data).environ()["DATABASE_URL"])
    assert await usage.write(database, entries) == num_calls
    await database.close()


def test_user_joins_and_leaves_accounts_and_the_global_key_is_shown_once(hearth: Hearth):
    first, second = (hearth("account", "create", name)["account_id"] for name in ("one", "two"))
    made = hearth("user", "create", "Ada@example.com", "--account", first)
    assert made["global_key"].startswith("cfk_")
    assert (made["email"], made["account_ids"]) == ("ada@example.com", [first])
    assert hearth("user", "join", "ada@example.com", second)["account_ids"] == [first, second]
    assert "already a member" in hearth("user", "join", "ada@example.com", second, status=1)
    left = hearth("user", "leave", "ada@example.com", first)
    assert hearth("user", "list") == [left]
    assert (left["name"], left["last_name"], "profile" in left) == ("ada", None, False)
    assert "global_key" not in left
    assert left["account_ids"] == [second]
    assert hearth("user", "roll", "ada@example.com")["global_key"] != made["global_key"]


def test_unknown_or_invalid_user_is_rejected(hearth: Hearth):
    hearth("user", "create", "ada", status=2)
    assert "no account" in hearth("user", "create", "ada@example.com", "--account", UNKNOWN, status=1)
    hearth("user", "create", "ada@example.com")
    assert "already" in hearth("user", "create", "ADA@example.com", status=1)
    assert "no user" in hearth("user", "roll", "bob@example.com", status=1)


def test_unknown_account_is_an_error(hearth: Hearth):
    for words in ("usage", "usage --latency", "usage --forecast", "token list", "budget list", "budget set 1"):
        message = hearth(*words.split(), "--account", UNKNOWN, status=1)
        assert message == f"there is no account {UNKNOWN}", words
    assert hearth("audit", "list", UNKNOWN, status=1) == f"there is no account {UNKNOWN}"
