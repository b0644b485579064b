"""`hearth operator`: users who sign in to the dashboard with a password. A generated password is shown only once."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import DataOption, Target
from cli.user import RoleName

if TYPE_CHECKING:
    from storage.database import Database
    from tenants.operators import Operator

app = typer.Typer(help="Operators, who sign in to the dashboard: add, reset, list, remove.", no_args_is_help=True)
COLUMNS = ("user_id", "email", "platform_role", "has_password", "created_at", "account_roles")

Email = Annotated[str, typer.Argument(help="The operator's email.", show_default=False)]
GenerateOption = Annotated[
    bool, typer.Option("--generate", help="Generate the password and print it once, instead of reading it.")
]


class PlatformRoleName(StrEnum):
    """The role of an operator on the whole platform."""

    administrator = "administrator"
    viewer = "viewer"


@app.command()
def add(
    email: Email,
    role: Annotated[PlatformRoleName | None, typer.Option(help="Role on the whole platform. Default: none.")] = None,
    account: Annotated[str | None, typer.Option(help="Account id of a membership.")] = None,
    account_role: Annotated[RoleName, typer.Option(help="Role in that account.")] = RoleName.administrator,
    generate: GenerateOption = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Let a user sign in to the dashboard. A missing user is created. The password is read from the terminal
    or from standard input."""
    if role is None and account is None:
        raise CommandFailed("pass --role, --account or both: otherwise the operator could see nothing", exit_code=2)
    password = _password(generate)
    print_record(
        asyncio.run(_add(data, email, role, account, account_role, password))
        | ({"password": password} if generate else {}),
        is_json=json,
    )


@app.command()
def reset(email: Email, generate: GenerateOption = False, data: DataOption = None, json: JsonOption = False) -> None:
    """Replace an operator's password and end the operator's sessions."""
    password = _password(generate)
    print_record(
        asyncio.run(_reset(data, email, password)) | ({"password": password} if generate else {}), is_json=json
    )


@app.command("list")
def list_(data: DataOption = None, json: JsonOption = False) -> None:
    """List all operators. Operators of an OpenID provider are not listed: the provider knows them."""
    print_rows(asyncio.run(_list(data)), COLUMNS, is_json=json, empty="no operators yet")


@app.command()
def remove(email: Email, data: DataOption = None, json: JsonOption = False) -> None:
    """Take password and platform role from a user and end the user's sessions. The user's memberships, API tokens and
    global key stay; `hearth user leave` ends a membership."""
    print_record(asyncio.run(_remove(data, email)), is_json=json)


def _password(is_generated: bool) -> str:
    """Return a generated password, or the one from the terminal or standard input. Raises CommandFailed."""
    from tenants.credentials.passwords import check_password, generate_password

    if is_generated:
        return generate_password()
    if sys.stdin.isatty():
        password = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        password = sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise CommandFailed("standard input has no password: pass it there, or use --generate", exit_code=2)
    try:
        check_password(password)
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=2) from None
    return password


async def _add(
    data: Path | None,
    email: str,
    role: PlatformRoleName | None,
    account_id: str | None,
    account_role: RoleName,
    password: str,
) -> dict[str, Any]:
    from storage.errors import Conflict, Missing
    from tenants import accounts, operators, users
    from tenants.credentials.passwords import hash_password

    target = Target.find(data)
    async with target.database() as database, target.change_context() as context:
        if account_id is not None and await accounts.find(database, account_id) is None:
            raise CommandFailed(f"there is no account {account_id}")
        try:
            user_id = await operators.add(
                database,
                email,
                role=None if role is None else role.value,
                password_hash=hash_password(password),
                context=context,
            )
        except ValueError as error:
            raise CommandFailed(str(error), exit_code=2) from None
        if account_id is not None:
            try:
                await users.join(database, user_id, account_id, role=account_role.value, context=context)
            except Conflict:
                await users.set_role(database, user_id, account_id, account_role.value, context=context)
            except Missing as error:
                raise CommandFailed(f"there is no {error}") from None
        return await _record(database, await _find(database, email))


async def _reset(data: Path | None, email: str, password: str) -> dict[str, Any]:
    from tenants import operators
    from tenants.credentials.passwords import hash_password

    target = Target.find(data)
    async with target.database() as database, target.change_context() as context:
        user = await _find(database, email)
        await operators.set_password(database, user.user_id, hash_password(password), context=context)
        return await _record(database, await _find(database, email))


async def _list(data: Path | None) -> list[dict[str, Any]]:
    from tenants import operators

    async with Target.find(data).database() as database:
        return [await _record(database, operator) for operator in await operators.list_all(database)]


async def _remove(data: Path | None, email: str) -> dict[str, Any]:
    from tenants import operators

    target = Target.find(data)
    async with target.database() as database, target.change_context() as context:
        user = await _find(database, email)
        await operators.remove(database, user.user_id, context=context)
        return await _record(database, await _find(database, email))


async def _find(database: Database, email: str) -> Operator:
    from tenants import operators

    user = await operators.find_by_email(database, email)
    if user is None:
        raise CommandFailed(f"there is no user {email}")
    return user


async def _record(database: Database, operator: Operator) -> dict[str, Any]:
    """Return an operator's printed fields."""
    from tenants import users

    return {
        "user_id": operator.user_id,
        "email": operator.email,
        "name": operator.name,
        "platform_role": operator.platform_role,
        "has_password": operator.password_hash is not None,
        "created_at": operator.created_at,
        "account_roles": await users.roles_of(database, operator.user_id),
    }
