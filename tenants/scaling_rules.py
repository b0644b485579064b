"""Rules of autoscaling as rows: the operators' overrides, and capacity reserved for accounts.

Every change is recorded in the audit log. The scaling plan of the gateway applies the rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, func, select

from storage.database import Database, insert_replacing
from storage.errors import Conflict
from tenants.change_context import CLI, ChangeContext
from tenants.tables import capacity_reservations, scaling_overrides

EVERYWHERE = ""  # the PoP of a rule that counts replicas in all PoPs together
MAX_REPLICAS = 10_000
MAX_TOKENS_PER_S = 1e9
MAX_RULES = 10_000  # rules of each kind
_POP = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PLATFORM = ""  # the account of audit entries about overrides


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's rule for one model in one PoP, or in all PoPs together. `max_replicas` None means no limit.
    Replicas of a pinned model are never evicted by their node, and the model is not scaled to zero."""

    model: str
    pop: str = EVERYWHERE
    min_replicas: int = 0
    max_replicas: int | None = None
    is_pinned: bool = False

    @property
    def least(self) -> int:
        """The smallest number of replicas: a pinned model has at least one."""
        return max(self.min_replicas, int(self.is_pinned))

    def check(self) -> None:
        """Raise ValueError if the rule is invalid."""
        if self.pop != EVERYWHERE:
            check_pop(self.pop)
        if not 0 <= self.min_replicas <= MAX_REPLICAS:
            raise ValueError(f"min_replicas must be between 0 and {MAX_REPLICAS} (got {self.min_replicas})")
        if self.max_replicas is not None and not self.least <= self.max_replicas <= MAX_REPLICAS:
            raise ValueError(f"max_replicas must be between {self.least} and {MAX_REPLICAS} (got {self.max_replicas})")


@dataclass(frozen=True, slots=True)
class Reservation:
    """Capacity for one account in one PoP: the plan keeps replicas for these tokens per second in addition to the
    measured demand, and does not scale the model to zero there."""

    account_id: str
    model: str
    pop: str
    tokens_per_s: float

    def check(self) -> None:
        """Raise ValueError if the reservation is invalid."""
        check_pop(self.pop)
        if not 0 < self.tokens_per_s <= MAX_TOKENS_PER_S:
            raise ValueError(f"tokens_per_s must be greater than 0 and at most {MAX_TOKENS_PER_S:.0f}")


def check_pop(pop: str) -> None:
    """Raise ValueError for a text that cannot be the name of a PoP."""
    if not _POP.fullmatch(pop):
        raise ValueError("pop must have 1 to 64 letters, digits, dots, hyphens and underscores")


async def put_override(database: Database, rule: Override, *, context: ChangeContext = CLI) -> None:
    """Set an override, replacing the one for the same model and PoP. Raises ValueError, Conflict."""
    rule.check()
    limit = "none" if rule.max_replicas is None else str(rule.max_replicas)
    detail = f"pop={rule.pop or 'all'} min={rule.min_replicas} max={limit} pinned={str(rule.is_pinned).lower()}"
    await _put(database, scaling_overrides, asdict(rule), _PLATFORM, "scaling.override", rule.model, detail, context)


async def remove_override(database: Database, model: str, pop: str, *, context: ChangeContext = CLI) -> bool:
    """Remove an override; return True if it existed."""
    keys = {"model": model, "pop": pop}
    return await _remove(database, scaling_overrides, keys, _PLATFORM, "scaling.override_removed", context)


async def list_overrides(database: Database) -> list[Override]:
    """Return all overrides, by model and PoP."""
    return [Override(**row) for row in await _list(database, scaling_overrides)]


async def put_reservation(database: Database, reservation: Reservation, *, context: ChangeContext = CLI) -> None:
    """Set reserved capacity, replacing that of the same account, model and PoP. Raises ValueError, Conflict."""
    reservation.check()
    detail = f"pop={reservation.pop} tokens_per_s={reservation.tokens_per_s:g}"
    values, account_id = asdict(reservation), reservation.account_id
    await _put(
        database, capacity_reservations, values, account_id, "capacity.reserve", reservation.model, detail, context
    )


async def remove_reservation(
    database: Database, account_id: str, model: str, pop: str, *, context: ChangeContext = CLI
) -> bool:
    """Remove reserved capacity; return True if it existed."""
    keys = {"account_id": account_id, "model": model, "pop": pop}
    return await _remove(database, capacity_reservations, keys, account_id, "capacity.release", context)


async def list_reservations(database: Database, account_id: str | None = None) -> list[Reservation]:
    """Return the reserved capacity of an account, or of all accounts."""
    table = capacity_reservations
    where = None if account_id is None else table.c.account_id == account_id
    return [Reservation(**row) for row in await _list(database, table, where)]


async def _put(
    database: Database,
    table: Table,
    values: dict[str, Any],
    account_id: str,
    action: str,
    model: str,
    detail: str,
    context: ChangeContext,
) -> None:
    async with database.transaction() as connection:
        if (await connection.execute(select(func.count()).select_from(table))).scalar_one() >= MAX_RULES:
            raise Conflict(f"there can be at most {MAX_RULES} rules of this kind")
        row = values | {"modified_at": context.clock.now()}
        await connection.execute(insert_replacing(table, database.dialect), [row])
        await context.record(connection, action, account_id, model[:64], detail)


async def _remove(
    database: Database, table: Table, keys: Mapping[str, str], account_id: str, action: str, context: ChangeContext
) -> bool:
    is_this = and_(*(table.c[name] == value for name, value in keys.items()))
    async with database.transaction() as connection:
        found = (await connection.execute(delete(table).where(is_this))).rowcount > 0
        if found:
            await context.record(connection, action, account_id, keys["model"][:64], f"pop={keys['pop'] or 'all'}")
    return found


async def _list(database: Database, table: Table, where: ColumnElement[bool] | None = None) -> list[dict[str, Any]]:
    columns = [column for column in table.c if column.name != "modified_at"]
    query = select(*columns).order_by(*table.primary_key)
    if where is not None:
        query = query.where(where)
    async with database.connection() as connection:
        return [dict(row) for row in (await connection.execute(query)).mappings()]
