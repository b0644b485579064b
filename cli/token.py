"""`hearth token`: the API tokens of an account. Secrets are shown only at creation."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.data_dir import DataOption
from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import Target

if TYPE_CHECKING:
    from storage.database import Database
    from tenants.credentials.api_tokens import ApiToken

app = typer.Typer(help="API tokens: create, list, revoke.", no_args_is_help=True)
COLUMNS = ("api_token_id", "name", "kind", "status", "groups", "created_at", "expires_at")
_PERIOD = re.compile(r"(\d{1,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

AccountOption = Annotated[
    str | None, typer.Option("--account", help="Account id; the first account of `hearth up` unless given.")
]


class Kind(StrEnum):
    user = "user"
    account = "account"


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What people call this token.")] = "token",
    account: AccountOption = None,
    permission: Annotated[
        list[str] | None,
        typer.Option(help="Permission group, may be repeated; Workers AI Read and Write unless given."),
    ] = None,
    expires: Annotated[str | None, typer.Option(help="Period such as 30d or 12h, or a time in ISO 8601.")] = None,
    kind: Annotated[Kind, typer.Option(help="Whose token it is: a person's or the account's.")] = Kind.user,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create an API token and show its secret, this once."""
    expires_at = parse_expiry(expires, datetime.now(UTC)) if expires else None
    print_record(asyncio.run(_create(data, account, name, permission, expires_at, kind)), is_json=json)


@app.command("list")
def list_(account: AccountOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """List an account's API tokens; secrets are not kept and cannot be shown."""
    print_rows(asyncio.run(_list(data, account)), COLUMNS, is_json=json, empty="no API tokens yet")


@app.command()
def revoke(
    api_token_id: Annotated[str, typer.Argument(help="As `hearth token list` shows it.", show_default=False)],
    account: AccountOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke an API token; every gateway refuses it within seconds."""
    print_record(asyncio.run(_revoke(data, account, api_token_id)), is_json=json)


def parse_expiry(text: str, now: datetime) -> datetime:
    """`30d`, `12h`, or an ISO 8601 time (UTC unless it says otherwise). Raises CommandFailed; the past is refused."""
    period = _PERIOD.fullmatch(text)
    try:
        found = (
            now + timedelta(seconds=int(period[1]) * _SECONDS[period[2]]) if period else datetime.fromisoformat(text)
        )
    except ValueError:
        raise CommandFailed(f"--expires: {text!r} is neither a period such as 30d nor a time in ISO 8601", 2) from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if found <= now:
        raise CommandFailed(f"--expires: {text!r} is not in the future", exit_code=2)
    return found


def account_of(target: Target, account: str | None) -> str:
    """The account asked for, or the platform's first one. Raises CommandFailed."""
    account_id = account or target.first_account_id
    if not account_id:
        raise CommandFailed("which account? give --account (see `hearth account list`)", exit_code=2)
    return account_id


async def check_account(database: Database, account_id: str) -> None:
    """Raises CommandFailed where there never was such an account: it is not one that merely has nothing yet."""
    from tenants import accounts

    if not await accounts.was_made(database, account_id):
        raise CommandFailed(f"there is no account {account_id}")


async def _create(
    data: Path | None,
    account: str | None,
    name: str,
    permissions: list[str] | None,
    expires_at: datetime | None,
    kind: Kind,
) -> dict[str, Any]:
    from storage.errors import Missing
    from tenants.credentials import api_tokens, scopes

    target = Target.find(data)
    account_id = account_of(target, account)
    groups = permissions or scopes.WORKERS_AI_GROUPS
    async with target.database() as database:
        try:
            created = await api_tokens.create(
                database, target.pepper(), account_id, name, groups, expires_at, kind.value
            )
        except Missing:
            raise CommandFailed(f"there is no account {account_id}") from None
        except ValueError as error:
            raise CommandFailed(str(error), exit_code=2) from None
    return record(created.token) | {"secret": created.secret}


async def _list(data: Path | None, account: str | None) -> list[dict[str, Any]]:
    from tenants.credentials import api_tokens

    target = Target.find(data)
    account_id = account_of(target, account)
    async with target.database() as database:
        await check_account(database, account_id)
        return [record(token) for token in await api_tokens.list_all(database, account_id)]


async def _revoke(data: Path | None, account: str | None, api_token_id: str) -> dict[str, Any]:
    from storage.errors import Missing
    from tenants.credentials import api_tokens

    target = Target.find(data)
    account_id = account_of(target, account)
    async with target.database() as database, target.hints() as ephemeral:
        try:
            await api_tokens.revoke(database, account_id, api_token_id, ephemeral=ephemeral)
        except Missing:
            raise CommandFailed(f"this account has no API token {api_token_id}") from None
        found = await api_tokens.find(database, account_id, api_token_id)
        assert found is not None
        return record(found)


def record(token: ApiToken) -> dict[str, Any]:
    """What is printed of an API token: its permission groups by name."""
    import msgspec

    from tenants.credentials import scopes

    groups = [group.name if (group := scopes.find_group(group_id)) else group_id for group_id in token.groups]
    shown = {"policies": msgspec.to_builtins(token.policies), "condition": msgspec.to_builtins(token.condition)}
    shown["region"] = msgspec.to_builtins(token.region)
    return asdict(token) | {"groups": groups} | shown
