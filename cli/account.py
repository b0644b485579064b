"""`hearth account`: create, change, block and list accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import DataOption, Target

if TYPE_CHECKING:
    from storage.database import Database
    from tenants.accounts import Account
    from tenants.change_context import ChangeContext

app = typer.Typer(
    help="Accounts: create, list, block, unblock; plan, limits, residency and retention.", no_args_is_help=True
)
COLUMNS = ("account_id", "name", "status", "plan", "created_at")

AccountId = Annotated[str, typer.Argument(help="32 hexadecimal digits.", show_default=False)]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the account.", show_default=False)],
    account_id: Annotated[str | None, typer.Option("--id", help="32 hexadecimal digits. Default: random.")] = None,
    plan: Annotated[str, typer.Option(help="free, paid or enterprise.")] = "paid",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create an account."""
    print_record(asyncio.run(_create(data, name, account_id, plan)), is_json=json)


@app.command()
def terms(
    account_id: AccountId,
    plan: Annotated[str | None, typer.Option(help="free, paid or enterprise. Default: unchanged.")] = None,
    limits: Annotated[
        str | None,
        typer.Option(help="Limits of this account, such as account=100/60,account.calls=8. Empty: the defaults."),
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Change an account's plan, or limits that replace the operator's. Takes effect within seconds."""
    from tenants import accounts

    if plan is None and limits is None:
        raise CommandFailed("pass --plan, --limits or both", exit_code=2)
    change = partial(accounts.set_terms, plan=plan, limits=limits)
    print_record(asyncio.run(_change(data, account_id, change)), is_json=json)


@app.command("list")
def list_(data: DataOption = None, json: JsonOption = False) -> None:
    """List all accounts."""
    print_rows(asyncio.run(_list(data)), COLUMNS, is_json=json, empty="no accounts yet")


@app.command()
def block(account_id: AccountId, data: DataOption = None, json: JsonOption = False) -> None:
    """Reject all calls of an account until it is unblocked."""
    from tenants import accounts

    print_record(asyncio.run(_change(data, account_id, partial(accounts.set_blocked, is_blocked=True))), is_json=json)


@app.command()
def unblock(account_id: AccountId, data: DataOption = None, json: JsonOption = False) -> None:
    """Allow the calls of a blocked account again."""
    from tenants import accounts

    print_record(asyncio.run(_change(data, account_id, partial(accounts.set_blocked, is_blocked=False))), is_json=json)


@app.command()
def region(
    account_id: AccountId,
    locations: Annotated[
        str,
        typer.Argument(help="Countries and jurisdictions, such as DE,FR,eu; or anywhere.", show_default=False),
    ],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Restrict where an account's calls may run and its content may be stored."""
    from tenants import accounts
    from tenants.residency import parse_rule

    async def change(database: Database, account_id: str, *, context: ChangeContext) -> Account:
        rule = None if locations == "anywhere" else parse_rule(locations)
        return await accounts.set_region(database, account_id, rule, context=context)

    print_record(asyncio.run(_change(data, account_id, change)), is_json=json)


@app.command()
def retention(
    account_id: AccountId,
    rule: Annotated[str, typer.Argument(help="standard, or zero: no content of calls is stored.", show_default=False)],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Set what may be stored of an account's calls."""
    from tenants import accounts

    change = partial(accounts.set_retention, retention=rule)
    print_record(asyncio.run(_change(data, account_id, change)), is_json=json)


async def _create(data: Path | None, name: str, account_id: str | None, plan: str) -> dict[str, Any]:
    from storage.errors import Conflict
    from tenants import accounts

    async with Target.find(data).database() as database:
        try:
            return record(await accounts.create(database, name, account_id, plan=accounts.checked_plan(plan)))
        except Conflict:
            raise CommandFailed(f"account {account_id} already exists") from None
        except ValueError as error:
            raise CommandFailed(str(error), exit_code=2) from None


async def _list(data: Path | None) -> list[dict[str, Any]]:
    from tenants import accounts

    async with Target.find(data).database() as database:
        return [record(account) for account in await accounts.list_all(database)]


async def _change(data: Path | None, account_id: str, change: Callable[..., Awaitable[Account]]) -> dict[str, Any]:
    """Call `change(database, account_id, context=...)` and return the changed account. Raises CommandFailed."""
    from storage.errors import Missing

    target = Target.find(data)
    async with target.database() as database, target.change_context() as context:
        try:
            return record(await change(database, account_id, context=context))
        except Missing:
            raise CommandFailed(f"there is no account {account_id}") from None
        except ValueError as error:
            raise CommandFailed(str(error), exit_code=2) from None


def record(account: Account) -> dict[str, Any]:
    """Return an account's printed fields."""
    import msgspec

    return asdict(account) | {
        "settings": msgspec.to_builtins(account.settings),
        "region": msgspec.to_builtins(account.region),
    }
