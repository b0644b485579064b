"""`hearth token`: create, list and revoke API tokens. A secret is shown only when its token is created."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import DataOption, Target

if TYPE_CHECKING:
    from storage.database import Database
    from tenants.credentials.api_tokens import ApiToken

app = typer.Typer(help="API tokens: create, list, revoke.", no_args_is_help=True)
COLUMNS = ("api_token_id", "name", "kind", "status", "groups", "created_at", "expires_at")

AccountOption = Annotated[
    str | None, typer.Option("--account", help="Account id. Default: the first account of `hearth up`.")
]


class Kind(StrEnum):
    """The owner of a token: a user, or an account itself."""

    user = "user"
    account = "account"


@app.command()
def create(
    name: Annotated[str, typer.Option(help="Name of the token.")] = "token",
    account: AccountOption = None,
    permission: Annotated[
        list[str] | None,
        typer.Option(help="Permission group; may be repeated. Default: Workers AI Read and Workers AI Write."),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Give the token every permission of its account.")] = False,
    expires: Annotated[str | None, typer.Option(help="Period such as 30d or 12h, or an ISO 8601 time.")] = None,
    kind: Annotated[Kind, typer.Option(help="Owner of the token: the user, or the account itself.")] = Kind.user,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create an API token and print its secret. The secret is shown only once."""
    if admin and permission:
        raise CommandFailed("--admin and --permission exclude each other", exit_code=2)
    expires_at = parse_expiry(expires, datetime.now(UTC)) if expires else None
    print_record(asyncio.run(_create(data, account, name, permission, admin, expires_at, kind)), is_json=json)


@app.command("list")
def list_(account: AccountOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """List an account's API tokens. Secrets are not stored and cannot be shown."""
    print_rows(asyncio.run(_list(data, account)), COLUMNS, is_json=json, empty="no API tokens yet")


@app.command()
def revoke(
    api_token_id: Annotated[str, typer.Argument(help="Id shown by `hearth token list`.", show_default=False)],
    account: AccountOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke an API token. Every gateway rejects it within seconds."""
    print_record(asyncio.run(_revoke(data, account, api_token_id)), is_json=json)


def parse_expiry(text: str, now: datetime) -> datetime:
    """Return the time for `30d`, `12h`, or an ISO 8601 time (UTC by default).

    Raises CommandFailed if not in the future.
    """
    period_s = parse_period(text)
    try:
        found = datetime.fromisoformat(text) if period_s is None else now + timedelta(seconds=period_s)
    except ValueError:
        raise CommandFailed(f"--expires must be a period such as 30d or an ISO 8601 time (got {text!r})", 2) from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if found <= now:
        raise CommandFailed(f"--expires must be in the future (got {text!r})", exit_code=2)
    return found


def parse_period(text: str) -> int | None:
    """Return the seconds of a period such as 60s, 12h or 30d; None if the text is not a period."""
    period = re.fullmatch(r"(\d{1,5})([smhd])", text)
    return int(period[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[period[2]] if period else None


def account_of(target: Target, account: str | None) -> str:
    """Return the given account id, or that of the platform's first account. Raises CommandFailed."""
    account_id = account or target.first_account_id
    if not account_id:
        raise CommandFailed("pass --account (see `hearth account list`)", exit_code=2)
    return account_id


async def check_account(database: Database, account_id: str) -> None:
    """Raise CommandFailed if an account never existed."""
    from tenants import accounts

    if not await accounts.was_made(database, account_id):
        raise CommandFailed(f"there is no account {account_id}")


async def _create(
    data: Path | None,
    account: str | None,
    name: str,
    permissions: list[str] | None,
    is_admin: bool,
    expires_at: datetime | None,
    kind: Kind,
) -> dict[str, Any]:
    from storage.errors import Missing
    from tenants.credentials import api_tokens, scopes

    target = Target.find(data)
    account_id = account_of(target, account)
    all_groups = [group.group_id for group in scopes.GROUPS]
    groups = all_groups if is_admin else permissions or scopes.WORKERS_AI_GROUPS
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
    async with target.database() as database, target.change_context() as context:
        try:
            await api_tokens.revoke(database, account_id, api_token_id, context=context)
        except Missing:
            raise CommandFailed(f"this account has no API token {api_token_id}") from None
        found = await api_tokens.find(database, account_id, api_token_id)
        assert found is not None
        return record(found)


def record(token: ApiToken) -> dict[str, Any]:
    """Return an API token's printed fields, with permission groups by name."""
    import msgspec

    from tenants.credentials import scopes

    groups = [group.name if (group := scopes.find_group(group_id)) else group_id for group_id in token.groups]
    structs = {name: msgspec.to_builtins(getattr(token, name)) for name in ("policies", "condition", "region")}
    return asdict(token) | {"groups": groups} | structs
