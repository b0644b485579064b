"""Aliases: public model ids that the operator maps to another model.

The target of an alias may be another alias, but not form a cycle, and must lead to a model. The id of an existing model
cannot become an alias.
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
"""Appends an audit entry in the transaction that changes an alias."""

Check = Callable[[str | None], None]
"""Checks the value that a change would replace, within its transaction."""


async def set_alias(
    database: Database,
    name: str,
    target: str,
    *,
    builtin_names: Collection[str] | None = None,
    check: Check | None = None,
    note: Note | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Map `name` to `target`, replacing an existing alias.

    `check` is called with the current target (None if there is no alias) and may raise. Raises AliasError if `name` is
    a model, or if `target` leads to no model or forms a cycle; InvalidModelId for either name; StoreUnavailable.
    """
    name, target = parse_model_id(name), parse_model_id(target)
    builtin = builtin_models().keys() if builtin_names is None else builtin_names
    async with change(database) as connection:
        models = (await read_cards(connection)).keys() | set(builtin)
        if name in models:
            raise AliasError(f"{name} is a model and cannot be an alias")
        current = await read_aliases(connection)
        if check is not None:
            check(current.get(name))
        aliases = {**current, name: target}
        end = follow(aliases, name)
        if end is None:
            raise AliasError(f"the alias would form a cycle: {target} leads back to {name}")
        if end not in models:
            raise AliasError(f"there is no model {end}")
        await write_alias(connection, name, target, clock.now())
        if note is not None:
            await note(connection)


async def remove_alias(database: Database, name: str, *, check: Check | None = None, note: Note | None = None) -> None:
    """Delete an alias. `check` is that of `set_alias`. Raises AliasError if the alias does not exist."""
    async with change(database) as connection:
        if check is not None:
            check((await read_aliases(connection)).get(name))
        if not await delete_alias(connection, parse_model_id(name)):
            raise AliasError(f"there is no alias {name}")
        if note is not None:
            await note(connection)


async def list_aliases(database: Database) -> dict[str, str]:
    """Return alias -> target, sorted by alias."""
    async with database.connection() as connection:
        return await read_aliases(connection)


def follow(aliases: Mapping[str, str], name: str) -> str | None:
    """Return the model id to which `name` leads, or None if the aliases form a cycle."""
    seen = set()
    while name in aliases:
        if name in seen:
            return None
        seen.add(name)
        name = aliases[name]
    return name
