"""`hearth user`: create and list users, change their memberships and global keys. A global key is shown only once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import DataOption, Target

if TYPE_CHECKING:
    from storage.database import Database
    from tenants.users import User

app = typer.Typer(help="Users: create, list, join, role, leave, roll.", no_args_is_help=True)
COLUMNS = ("user_id", "email", "name", "created_at", "account_ids")

Email = Annotated[str, typer.Argument(help="The user's email.", show_default=False)]
AccountId = Annotated[str, typer.Argument(help="32 hexadecimal digits.", show_default=False)]


class RoleName(StrEnum):
    """The role of a member in an account."""

    administrator = "administrator"
    developer = "developer"
    viewer = "viewer"


@app.command()
def create(
    email: Email,
    account: Annotated[list[str] | None, typer.Option(help="Account id of a membership; may be repeated.")] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Create a user and print the global key. The key is shown only once."""
    print_record(asyncio.run(_create(data, email, tuple(account or ()))), is_json=json)


@app.command("list")
def list_(data: DataOption = None, json: JsonOption = False) -> None:
    """List all users."""
    print_rows(asyncio.run(_list(data)), COLUMNS, is_json=json, empty="no users yet")


@app.command()
def join(
    email: Email,
    account: AccountId,
    role: Annotated[RoleName, typer.Option(help="Role of the member.")] = RoleName.administrator,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Add a user to an account."""
    from tenants import users

    change = partial(users.join, role=role.value)
    print_record(asyncio.run(_change_membership(data, email, account, change)), is_json=json)


@app.command("role")
def set_role(
    email: Email,
    account: AccountId,
    role: Annotated[RoleName, typer.Argument(help="Role of the member.", show_default=False)],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Change a member's role. Takes effect for all of the user's credentials within seconds."""
    from tenants import users

    change = partial(users.set_role, role=role.value)
    print_record(asyncio.run(_change_membership(data, email, account, change)), is_json=json)


@app.command()
def leave(email: Email, account: AccountId, data: DataOption = None, json: JsonOption = False) -> None:
    """Remove a user from an account. The user's credentials lose access to it within seconds."""
    from tenants import users

    print_record(asyncio.run(_change_membership(data, email, account, users.leave)), is_json=json)


@app.command()
def roll(email: Email, data: DataOption = None, json: JsonOption = False) -> None:
    """Replace a user's global key and print the new one once. The old key is rejected within seconds."""
    print_record(asyncio.run(_roll(data, email)), is_json=json)


async def _create(data: Path | None, email: str, account_ids: tuple[str, ...]) -> dict[str, Any]:
    from storage.errors import Conflict, Missing
    from tenants import users

    target = Target.find(data)
    async with target.database() as database:
        try:
            created = await users.create(database, target.pepper(), email, account_ids)
        except Conflict:
            raise CommandFailed(f"user {email} already exists") from None
        except Missing as error:
            raise CommandFailed(f"there is no {error}") from None
        except ValueError as error:
            raise CommandFailed(str(error), exit_code=2) from None
        return await record(database, created.user) | {"global_key": created.global_key}


async def _list(data: Path | None) -> list[dict[str, Any]]:
    from tenants import users

    async with Target.find(data).database() as database:
        return [await record(database, user) for user in await users.list_all(database)]


async def _change_membership(
    data: Path | None, email: str, account_id: str, change: Callable[..., Awaitable[None]]
) -> dict[str, Any]:
    """Call `change(database, user_id, account_id, context=...)` and return the user. Raises CommandFailed."""
    from storage.errors import Conflict, Missing

    target = Target.find(data)
    async with target.database() as database, target.change_context() as context:
        user = await _find(database, email)
        try:
            await change(database, user.user_id, account_id, context=context)
        except Missing as error:
            raise CommandFailed(f"there is no {error}") from None
        except Conflict:
            raise CommandFailed(f"{email} is already a member") from None
        return await record(database, user)


async def _roll(data: Path | None, email: str) -> dict[str, Any]:
    from tenants import users

    target = Target.find(data)
    async with target.database() as database, target.change_context() as context:
        user = await _find(database, email)
        key = await users.roll_global_key(database, target.pepper(), user.user_id, context=context)
        return await record(database, user) | {"global_key": key}


async def _find(database: Database, email: str) -> User:
    from tenants import users

    user = await users.find_by_email(database, email)
    if user is None:
        raise CommandFailed(f"there is no user {email}")
    return user


async def record(database: Database, user: User) -> dict[str, Any]:
    """Return a user's printed fields."""
    from tenants import users

    fields = asdict(user)
    fields |= msgspec.structs.asdict(fields.pop("profile"))
    return fields | {"account_ids": await users.account_ids_of(database, user.user_id)}
