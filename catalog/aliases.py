"""Aliases: a public model id that an operator lets another model answer.

An alias may lead to another alias, never in a circle and never to nothing; a name that a model of its own has cannot
become one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.builtin import builtin_models
from catalog.card import parse_model_id
from catalog.errors import AliasError
from catalog.rows import change, delete_alias, read_aliases, read_cards, write_alias
from storage.database import Database
from telemetry.clock import SYSTEM_CLOCK, Clock

Note = Callable[[AsyncConnection], Awaitable[None]]
"""What else is to be written in the transaction that changes an alias."""


async def set_alias(
    database: Database,
    name: str,
    target: str,
    *,
    builtin_names: Collection[str] | None = None,
    note: Note | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Let `target` answer calls to `name`, instead of what answered them before.

    Raises AliasError when `name` is a model's own, when `target` leads to no model, or in a circle; InvalidModelId
    for either text; StoreUnavailable.
    """
    name, target = parse_model_id(name), parse_model_id(target)
    builtin = builtin_models().keys() if builtin_names is None else builtin_names
    async with change(database) as connection:
        models = (await read_cards(connection)).keys() | set(builtin)
        if name in models:
            raise AliasError(f"{name} is a model of its own and cannot be an alias")
        aliases = {**await read_aliases(connection), name: target}
        end = follow(aliases, name)
        if end is None:
            raise AliasError(f"{target} leads back to {name}")
        if end not in models:
            raise AliasError(f"there is no model {end}")
        await write_alias(connection, name, target, clock.now())
        if note is not None:
            await note(connection)


async def remove_alias(database: Database, name: str, *, note: Note | None = None) -> None:
    """Raises AliasError when there is no such alias."""
    async with change(database) as connection:
        if not await delete_alias(connection, parse_model_id(name)):
            raise AliasError(f"there is no alias {name}")
        if note is not None:
            await note(connection)


async def list_aliases(database: Database) -> dict[str, str]:
    """Name -> target, by name."""
    async with database.connection() as connection:
        return await read_aliases(connection)


def follow(aliases: Mapping[str, str], name: str) -> str | None:
    """The first name behind `name` that is no alias; None when the aliases form a circle."""
    seen = set()
    while name in aliases:
        if name in seen:
            return None
        seen.add(name)
        name = aliases[name]
    return name
