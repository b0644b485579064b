"""Budgets of accounts and API tokens per calendar month (UTC), and the alerts they raised.

A budget is an amount of neurons or dollars. If it `refuses`, calls beyond it are rejected; each of its `alert_percents`
raises one alert per month. Knows rows; `allowance.py` enforces budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import delete, func, select

from storage.database import Database, insert_new, insert_replacing
from storage.errors import Conflict
from tenants.change_context import CLI, ChangeContext
from tenants.tables import budget_alerts, budgets

Unit = Literal["neurons", "usd"]

MAX_BUDGETS = 1000  # per account
MAX_MICRO_AMOUNT = 10**15  # one billion of either unit
WHOLE_ACCOUNT = ""  # used instead of an API token's id
DEFAULT_ALERTS = (50, 80, 100)
_MAX_ALERTS = 10


@dataclass(frozen=True)
class MonthlyBudget:
    """A budget; `micro_amount` is in millionths of the unit."""

    account_id: str
    api_token_id: str
    unit: Unit
    micro_amount: int
    refuses: bool = True
    alert_percents: tuple[int, ...] = DEFAULT_ALERTS

    def __post_init__(self) -> None:
        if self.unit not in ("neurons", "usd"):
            raise ValueError("unit must be neurons or usd")
        if not 0 < self.micro_amount <= MAX_MICRO_AMOUNT:
            raise ValueError("amount must be greater than 0 and at most 1000000000")
        percents = self.alert_percents
        if len(percents) > _MAX_ALERTS or not all(1 <= percent <= 1000 for percent in percents):
            raise ValueError("alert_percents must be at most 10 numbers from 1 to 1000")


@dataclass(frozen=True)
class Alert:
    """A threshold of a budget was passed: `month` is like 2026-11, `micro_used` the usage at detection."""

    account_id: str
    api_token_id: str
    unit: str
    month: str
    percent: int
    micro_amount: int
    micro_used: int
    at: datetime


async def put(database: Database, budget: MonthlyBudget, *, context: ChangeContext = CLI) -> None:
    """Set a budget, replacing one of the same account, token and unit. Raises Conflict if the account has too many."""
    values = {name: getattr(budget, name) for name in ("account_id", "api_token_id", "unit", "micro_amount", "refuses")}
    values |= {"alert_percents": ",".join(map(str, budget.alert_percents)), "modified_at": context.clock.now()}
    async with database.transaction() as connection:
        others = select(func.count()).where(budgets.c.account_id == budget.account_id)
        if (await connection.execute(others)).scalar_one() > MAX_BUDGETS:
            raise Conflict(f"an account can have at most {MAX_BUDGETS} budgets")
        await connection.execute(insert_replacing(budgets, database.dialect), [values])
        subject_id = budget.api_token_id or budget.account_id
        await context.record(connection, "budget.set", budget.account_id, subject_id)


async def remove(
    database: Database, account_id: str, api_token_id: str, unit: str, *, context: ChangeContext = CLI
) -> bool:
    """Remove a budget; return True if it existed."""
    is_this = (budgets.c.account_id == account_id) & (budgets.c.api_token_id == api_token_id) & (budgets.c.unit == unit)
    async with database.transaction() as connection:
        found = (await connection.execute(delete(budgets).where(is_this))).rowcount > 0
        if found:
            await context.record(connection, "budget.remove", account_id, api_token_id or account_id)
    return found


async def list_all(database: Database, account_id: str | None = None) -> list[MonthlyBudget]:
    """Return the budgets of an account, or of all accounts."""
    names = ("account_id", "api_token_id", "unit", "micro_amount", "refuses", "alert_percents")
    query = select(*(budgets.c[name] for name in names)).order_by(*budgets.primary_key)
    if account_id is not None:
        query = query.where(budgets.c.account_id == account_id)
    async with database.connection() as connection:
        rows = (await connection.execute(query)).mappings().all()
    return [MonthlyBudget(**(dict(row) | {"alert_percents": _percents(row["alert_percents"])})) for row in rows]


async def raise_alerts(database: Database, alerts: Sequence[Alert]) -> list[Alert]:
    """Store alerts; return those that were not raised before in their month."""
    if not alerts:
        return []
    rows = {_id_of(alert): alert for alert in alerts}
    statement = insert_new(budget_alerts, database.dialect, key="alert_id").returning(budget_alerts.c.alert_id)
    async with database.transaction() as connection:
        values = [{"alert_id": id, **vars(alert)} for id, alert in rows.items()]
        new = (await connection.execute(statement, values)).scalars().all()
    return [rows[id] for id in new]


async def list_alerts(database: Database, account_id: str | None, limit: int = 100) -> list[Alert]:
    """Return the newest alerts of an account, or of all accounts for None, newest first."""
    names = ("account_id", "api_token_id", "unit", "month", "percent", "micro_amount", "micro_used", "at")
    query = select(*(budget_alerts.c[name] for name in names))
    if account_id is not None:
        query = query.where(budget_alerts.c.account_id == account_id)
    async with database.connection() as connection:
        newest = query.order_by(budget_alerts.c.at.desc(), budget_alerts.c.alert_id.desc()).limit(limit)
        return [Alert(**row) for row in (await connection.execute(newest)).mappings()]


def _id_of(alert: Alert) -> str:
    """Return the alert's id, which depends on the budget's amount: a changed budget alerts again."""
    return f"{alert.account_id}:{alert.api_token_id}:{alert.unit}:{alert.month}:{alert.percent}:{alert.micro_amount}"


def _percents(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
