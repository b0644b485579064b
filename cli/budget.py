"""`hearth budget`: monthly budgets of accounts and API tokens, and their alerts."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import DataOption, Target
from cli.token import AccountOption, account_of, check_account

if TYPE_CHECKING:
    from tenants.quota.budgets import MonthlyBudget

app = typer.Typer(help="Monthly budgets of accounts and API tokens.", no_args_is_help=True)

COLUMNS = ("api_token_id", "unit", "amount", "refuses", "alert_percents")
ALERT_COLUMNS = ("at", "api_token_id", "unit", "month", "percent", "amount", "used")


class Unit(StrEnum):
    """The unit of a budget."""

    neurons = "neurons"
    usd = "usd"


TokenOption = Annotated[str, typer.Option("--token", help="API token id. Default: the whole account.")]
UnitOption = Annotated[Unit, typer.Option(help="Unit of the amount.")]


@app.command("set")
def set_(
    amount: Annotated[float, typer.Argument(help="Amount per calendar month (UTC).")],
    account: AccountOption = None,
    token: TokenOption = "",
    unit: UnitOption = Unit.neurons,
    warn_only: Annotated[bool, typer.Option("--warn-only", help="Do not reject calls that exceed the budget.")] = False,
    alerts: Annotated[str, typer.Option(help="Percentages of the budget that raise an alert.")] = "50,80,100",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Set a budget. Replaces an existing budget in the same unit."""
    from storage.errors import Conflict
    from tenants.quota import budgets

    target = Target.find(data)
    try:
        percents = tuple(sorted({int(part) for part in alerts.split(",") if part.strip()}))
        owner = account_of(target, account)
        budget = budgets.MonthlyBudget(owner, token, unit.value, round(amount * 1e6), not warn_only, percents)
        asyncio.run(_put(target, budget))
    except (ValueError, OverflowError, Conflict) as error:
        raise CommandFailed(str(error), exit_code=2) from None
    print_record(_shown(asdict(budget)), is_json=json)


@app.command("list")
def list_(account: AccountOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """List an account's budgets."""
    rows = asyncio.run(_list(data, account))
    print_rows(rows, COLUMNS, is_json=json, empty="no budgets")


@app.command()
def remove(
    account: AccountOption = None,
    token: TokenOption = "",
    unit: UnitOption = Unit.neurons,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a budget."""
    if not asyncio.run(_remove(data, account, token, unit.value)):
        raise CommandFailed("there is no such budget")
    print_record({"api_token_id": token or None, "unit": unit.value}, is_json=json)


@app.command()
def alerts(account: AccountOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """List the budget alerts of an account, newest first."""
    print_rows(asyncio.run(_alerts(data, account)), ALERT_COLUMNS, is_json=json, empty="no alerts")


async def _put(target: Target, budget: MonthlyBudget) -> None:
    from tenants.credentials import api_tokens
    from tenants.quota import budgets

    async with target.database() as database:
        account_id, token = budget.account_id, budget.api_token_id
        await check_account(database, account_id)
        if token and not await api_tokens.may_be_used_on(database, account_id, token):
            raise CommandFailed(f"account {account_id} has no API token {token}")
        await budgets.put(database, budget)


async def _list(data: Path | None, account: str | None) -> list[dict[str, Any]]:
    from tenants.quota import budgets

    target = Target.find(data)
    account_id = account_of(target, account)
    async with target.database() as database:
        await check_account(database, account_id)
        return [_shown(asdict(budget)) for budget in await budgets.list_all(database, account_id)]


async def _remove(data: Path | None, account: str | None, token: str, unit: str) -> bool:
    from tenants.quota import budgets

    target = Target.find(data)
    async with target.database() as database:
        return await budgets.remove(database, account_of(target, account), token, unit)


async def _alerts(data: Path | None, account: str | None) -> list[dict[str, Any]]:
    from tenants.quota import budgets

    target = Target.find(data)
    account_id = account_of(target, account)
    async with target.database() as database:
        await check_account(database, account_id)
        found = await budgets.list_alerts(database, account_id)
    rows = [_shown(asdict(alert)) for alert in found]
    return [row | {"used": row.pop("micro_used") / 1e6} for row in rows]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"amount": row.pop("micro_amount") / 1e6, "api_token_id": row["api_token_id"] or None}
