"""`hearth usage`: what an account has used, summed. Asks `tenants.usage` and prints."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.data_dir import DataOption
from cli.output import CommandFailed, JsonOption, print_rows
from cli.target import Target
from cli.token import AccountOption, account_of

COLUMNS = ("num_calls", "prompt_tokens", "cached_tokens", "completion_tokens", "neurons")


class By(StrEnum):
    model = "model"
    day = "day"
    token = "token"  # noqa: S105 - a way to group


def usage(
    account: AccountOption = None,
    by: Annotated[By, typer.Option(help="One row for each of these.")] = By.model,
    since: Annotated[str | None, typer.Option(help="First day (UTC), as 2026-11-20; 30 days ago unless given.")] = None,
    until: Annotated[str | None, typer.Option(help="Last day (UTC); today unless given.")] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Show what an account has used, by model, day or API token."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = parse_day("--since", since) if since else today - timedelta(days=30)
    last = parse_day("--until", until) if until else today
    if last < first:
        raise CommandFailed("--until is before --since", exit_code=2)
    rows = asyncio.run(_usage(data, account, by, first, last + timedelta(days=1)))
    print_rows(rows, (by.value, *COLUMNS), is_json=json, empty="nothing used")


def parse_day(option: str, text: str) -> datetime:
    """Midnight UTC of a day in ISO 8601. Raises CommandFailed."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise CommandFailed(f"{option}: {text!r} is not a day such as 2026-11-20", exit_code=2) from None


async def _usage(
    data: Path | None, account: str | None, by: By, since: datetime, until: datetime
) -> list[dict[str, Any]]:
    from tenants import usage_sums

    target = Target.find(data)
    async with target.database() as database:
        which = usage_sums.Filter(account_of(target, account))
        sums = await usage_sums.total(database, which, since, until, by=by.value)
    rows = [asdict(row) for row in sums]
    return [{by.value: row.pop("key"), **row, "neurons": row["micro_neurons"] / 1e6} for row in rows]
