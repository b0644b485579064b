"""Deprecations: the day from which a model is refused, set by the operator instead of the day in the model's card.

A day in the future warns users. Deprecations apply to published, built-in and listed models; an alias has the
deprecation of the model to which it leads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date, datetime

from msgspec import Struct, structs
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.card import ModelCard, parse_model_id
from catalog.listed import ListedModel
from catalog.rows import change
from catalog.tables import model_deprecations
from storage.database import Database
from storage.errors import Missing
from telemetry.clock import SYSTEM_CLOCK, Clock

MAX_REASON_CHARACTERS = 500
REASON = "deprecation_reason"  # property of a deprecated model
SUCCESSOR = "successor"  # property of a deprecated model: the model to use instead

Note = Callable[[AsyncConnection], Awaitable[None]]
"""Appends an audit entry in the transaction that changes a deprecation."""


class Deprecation(Struct, frozen=True):
    """The deprecation of one model. The model is refused from the UTC day `day` on; `successor` replaces it."""

    name: str
    day: date
    reason: str
    successor: str | None
    created_at: datetime


Check = Callable[[Deprecation | None], None]
"""Checks the deprecation that a change would replace, within its transaction; may raise."""

_COLUMNS = [model_deprecations.c[name] for name in Deprecation.__struct_fields__]


async def set_deprecation(
    database: Database,
    name: str,
    day: date,
    *,
    reason: str = "",
    successor: str | None = None,
    check: Check | None = None,
    note: Note | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Deprecation:
    """Deprecate a model, replacing an earlier deprecation. Effective in every gateway within a second.

    Raises ValueError for an invalid reason or a model that succeeds itself, InvalidModelId, StoreUnavailable.
    """
    name = parse_model_id(name)
    successor = None if successor is None else parse_model_id(successor)
    if successor == name:
        raise ValueError("successor must be another model")
    if len(reason) > MAX_REASON_CHARACTERS or not (reason.isprintable()):
        raise ValueError(f"reason must have at most {MAX_REASON_CHARACTERS} printable characters")
    made = Deprecation(name, day, reason, successor, clock.now())
    async with change(database) as connection:
        await _replace(connection, name, check)
        await connection.execute(insert(model_deprecations).values(**structs.asdict(made)))
        if note is not None:
            await note(connection)
    return made


async def remove_deprecation(
    database: Database, name: str, *, check: Check | None = None, note: Note | None = None
) -> None:
    """Remove the operator's deprecation; the day of the model's card applies again. Raises Missing, InvalidModelId."""
    name = parse_model_id(name)
    async with change(database) as connection:
        if not await _replace(connection, name, check):
            raise Missing(f"deprecation of {name}")
        if note is not None:
            await note(connection)


async def list_deprecations(database: Database) -> list[Deprecation]:
    """Return all deprecations, sorted by model. Raises StoreUnavailable."""
    async with database.connection() as connection:
        return list((await read_deprecations(connection)).values())


async def read_deprecations(connection: AsyncConnection) -> dict[str, Deprecation]:
    """Return model -> deprecation, sorted by model."""
    rows = (await connection.execute(select(*_COLUMNS).order_by(model_deprecations.c.name))).mappings()
    return {row["name"]: Deprecation(**row) for row in rows}


async def _replace(connection: AsyncConnection, name: str, check: Check | None) -> bool:
    """Delete the model's deprecation after `check`; return False if there is none."""
    if check is not None:
        check((await read_deprecations(connection)).get(name))
    this = model_deprecations.c.name == name
    return (await connection.execute(delete(model_deprecations).where(this))).rowcount > 0


def deprecated_card(card: ModelCard, found: Deprecation | None) -> ModelCard:
    """Return the card with the deprecation, if any."""
    if found is None:
        return card
    notes = {REASON: found.reason, SUCCESSOR: found.successor or ""}
    others = {name: value for name, value in card.properties.items() if name not in notes}
    properties = others | {name: value for name, value in notes.items() if value}
    return structs.replace(card, planned_deprecation_date=found.day, properties=properties)


def deprecated_listed(model: ListedModel, found: Deprecation | None) -> ListedModel:
    """Return the listed model with the deprecation, if any."""
    if found is None:
        return model
    properties = model.properties | ({REASON: found.reason} if found.reason else {})
    return structs.replace(model, retired_on=found.day, successor=found.successor, properties=properties)
