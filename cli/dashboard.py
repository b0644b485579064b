"""`hearth dashboard`: print a new one-time sign-in link to the dashboard."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_json
from cli.target import DataOption, Target
from local_platform.data_dir import DataDir
from local_platform.first_account import ADMINISTRATOR, create_sign_in_link, link_url


def dashboard(
    email: Annotated[str, typer.Option(help="The user who signs in with the link.")] = ADMINISTRATOR,
    url: Annotated[
        str | None, typer.Option(help="Origin of the platform. Default: that of the running `hearth up`.")
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print a new sign-in link to the dashboard. The link works once, within 10 minutes; earlier links of the user
    become invalid."""
    link = asyncio.run(_create(data, email, url))
    if json:
        print_json({"email": email, "sign_in_link": link})
    else:
        typer.echo(link)


async def _create(data: Path | None, email: str, url: str | None) -> str:
    from storage.errors import StoreUnavailable
    from tenants import operators

    target = Target.find(data)
    if target.data_dir is not None and email == ADMINISTRATOR:
        data_dir = DataDir(target.data_dir)
        origin = url or _origin(data_dir)
        try:
            link = await create_sign_in_link(target.require("DATABASE_URL"), data_dir.read_secrets(), origin)
        except StoreUnavailable as error:
            raise CommandFailed(str(error)) from None
        if not link:
            raise CommandFailed(
                f"{email} was removed: `hearth operator add {email} --role administrator` adds the user"
            )
        return link
    origin = url or (_origin(DataDir(target.data_dir)) if target.data_dir is not None else "")
    if not origin:
        raise CommandFailed("pass --url, the origin at which browsers reach this platform", exit_code=2)
    async with target.database() as database, target.change_context() as context:
        user = await operators.find_by_email(database, email)
        if user is None:
            raise CommandFailed(f"there is no user {email}")
        token = await operators.create_link(database, target.pepper(), user.user_id, context=context)
    return link_url(origin.rstrip("/"), token)


def _origin(data_dir: DataDir) -> str:
    """Return the origin of the platform that runs in a data directory. Raises CommandFailed."""
    running: dict[str, Any] = data_dir.read_dev() or {}
    if "base_url" not in running:
        raise CommandFailed(f"no platform runs in {data_dir.path}: start one with `hearth up`")
    return str(running["base_url"]).removesuffix("/client/v4")
