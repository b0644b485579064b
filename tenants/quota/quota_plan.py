"""Quota plans and reservations, and the Redis commands for them.

A plan holds everything that calls of one kind are limited by. All bytes of its commands except the last argument are
built once per plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct

from storage.redis_link import command, packed
from tenants.quota import quota_script as script
from tenants.quota.limits import Item


class QuotaExceeded(Exception):
    """A limit rejects a call; `retry_after_s` is the time until it may admit one."""

    def __init__(self, item: Item, retry_after_s: int, window_statuses: Sequence[WindowStatus] = ()) -> None:
        super().__init__(item.name)
        self.item = item
        self.retry_after_s = retry_after_s
        self.window_statuses = window_statuses


class WindowStatus(Struct, frozen=True, gc=False):
    """State of one window: how much remains, and whole seconds until it resets (at least 1)."""

    item: Item
    remaining: int
    reset_s: int


@dataclass(frozen=True, slots=True)
class Budget:
    """`limit` micro-neurons for an account or one of its API tokens, from `since` until before `until`. Counted under
    `key` in Redis for `ttl_s`; calls are rejected while the budget cannot be counted."""

    key: str
    name: str
    limit: int
    account_id: str
    api_token_id: str
    since: datetime
    until: datetime
    ttl_s: float
    requires_redis: bool = True


def _head(name: str, keys: Sequence[str], facts: Sequence[str | int]) -> bytes:
    """Return a script command without its last argument, which differs per call. All arguments must be ASCII."""
    fixed = ("EVALSHA", script.SHA[name], len(keys), *keys, *facts)
    return b"*%d\r\n" % (len(fixed) + 1) + packed(*fixed)


def _item_of(budget: Budget) -> Item:
    span_ms = max(1, round(budget.ttl_s * 1000))
    return Item(budget.name, "b", budget.key, budget.limit, span_ms, budget.requires_redis)


class Plan:
    """The limits of all calls of one kind and their commands. `waiting` are the items that end at first output."""

    __slots__ = (
        "budgets",
        "has_calls",
        "items",
        "refusal",
        "refused_until_s",
        "reserve_head",
        "settle_head",
        "waiting",
    )

    def __init__(self, account_id: str, items: tuple[Item, ...], budgets: tuple[Budget, ...] = ()) -> None:
        self.budgets = budgets  # same order as the last items
        self.items = items = items + tuple(map(_item_of, budgets))
        self.has_calls = any(item.kind == "c" for item in items)
        self.waiting = tuple(item for item in items if item.ends_at_first_output)
        self.refusal: QuotaExceeded | None = None
        self.refused_until_s = 0.0
        keys = (script.EPOCH_KEY, f"quota:open:{account_id}", *(item.key for item in items))
        facts = [fact for item in items for fact in (item.kind, item.limit, item.span_ms)]
        self.reserve_head = _head("reserve", keys, facts)
        self.settle_head = _head("settle", keys, facts)


NO_PLAN = Plan("", ())


class Reservation:
    """The reserved quota of one call. Settle each exactly once by `Quota.settle`, except those of `count_request`."""

    __slots__ = ("has_output", "is_counted", "micro_neurons", "op", "plan", "since_s", "tokens", "window_statuses")

    def __init__(self, plan: Plan, op: str, tokens: int, micro_neurons: int) -> None:
        self.plan = plan
        self.op = op
        self.tokens = tokens
        self.micro_neurons = micro_neurons
        self.window_statuses: Sequence[WindowStatus] = ()
        self.is_counted = True  # False if Redis was unavailable: this gateway reports the call to Redis later
        self.has_output = False  # True once the call has output
        self.since_s = 0.0

    def reserve_command(self, epoch: str, lease_ms: int, mode: int) -> bytes:
        """Return the command that reserves; `mode` is a mode of the reserve script."""
        last = f"{self.op} {epoch or '-'} {lease_ms} {mode} {self.tokens} {self.micro_neurons}"
        return b"%b$%d\r\n%b\r\n" % (self.plan.reserve_head, len(last), last.encode())

    def settle_command(self, lease_ms: int, tokens: int, spent: int) -> bytes:
        """Return the command that settles with the tokens and micro-neurons actually used."""
        last = f"{self.op} {lease_ms} {self.tokens} {tokens} {self.micro_neurons} {spent}"
        return b"%b$%d\r\n%b\r\n" % (self.plan.settle_head, len(last), last.encode())

    def release_waiting_commands(self) -> list[bytes]:
        """Return commands that release the slots held until first output."""
        return [command("ZREM", item.key, self.op) for item in self.plan.waiting] if self.has_output else []
