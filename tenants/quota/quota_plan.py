"""What calls are held to: a plan for all of one kind, what one of them was let in with, and how it then stands.

Also the bytes by which Redis is asked about them, of which all but a call's own last words are made once for a plan.
Knows the scripts' words (`quota_script.py`), not how they are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from storage.redis_link import command, packed
from tenants.quota import quota_script as script
from tenants.quota.limits import Item


class QuotaExceeded(Exception):
    """A limit lets nothing in for so long."""

    def __init__(self, item: Item, retry_after_s: int, window_statuses: Sequence[WindowStatus] = ()) -> None:
        super().__init__(item.name)
        self.item = item
        self.retry_after_s = retry_after_s
        self.window_statuses = window_statuses


class WindowStatus(Struct, frozen=True, gc=False):
    """How a window stands: so much of it is left, for so long (whole seconds, at least 1)."""

    item: Item
    remaining: int
    reset_s: int


class Budget(Protocol):
    """So many micro-neurons, of which Redis counts what is used and reserved; known for `ttl_s` under its key."""

    @property
    def key(self) -> str: ...
    @property
    def limit(self) -> int: ...
    @property
    def ttl_s(self) -> float: ...
    @property
    def name(self) -> str: ...
    @property
    def requires_redis(self) -> bool: ...


def _head(name: str, keys: Sequence[str], facts: Sequence[str | int]) -> bytes:
    """A script's command but for its last argument, which each call has of its own; its ASCII words are as many bytes
    as characters."""
    fixed = ("EVALSHA", script.SHA[name], len(keys), *keys, *facts)
    return b"*%d\r\n" % (len(fixed) + 1) + packed(*fixed)


def _item_of(budget: Budget) -> Item:
    span_ms = max(1, round(budget.ttl_s * 1000))
    return Item(budget.name, "b", budget.key, budget.limit, span_ms, budget.requires_redis)


class Plan:
    """What calls of one kind are held to, and the bytes by which Redis is asked. `waiting`: items of calls that have no
    output yet."""

    __slots__ = ("budgets", "enter_head", "has_calls", "items", "leave_head", "refusal", "refused_until_s", "waiting")

    def __init__(self, account_id: str, items: tuple[Item, ...], budgets: tuple[Budget, ...] = ()) -> None:
        self.budgets = budgets  # in the order of the items that they are, the last ones
        self.items = items = items + tuple(map(_item_of, budgets))
        self.has_calls = any(item.kind == "c" for item in items)
        self.waiting = tuple(item for item in items if item.ends_at_first_output)
        self.refusal: QuotaExceeded | None = None
        self.refused_until_s = 0.0
        keys = (script.EPOCH_KEY, f"quota:open:{account_id}", *(item.key for item in items))
        facts = [fact for item in items for fact in (item.kind, item.limit, item.span_ms)]
        self.enter_head = _head("enter", keys, facts)
        self.leave_head = _head("leave", keys, facts)


NO_PLAN = Plan("", ())


class Reservation:
    """One call that was let in. `leave` it exactly once, unless it only passed by."""

    __slots__ = ("is_begun", "is_counted", "micro_neurons", "op", "plan", "since_s", "tokens", "window_statuses")

    def __init__(self, plan: Plan, op: str, tokens: int, micro_neurons: int) -> None:
        self.plan = plan
        self.op = op
        self.tokens = tokens
        self.micro_neurons = micro_neurons
        self.window_statuses: Sequence[WindowStatus] = ()
        self.is_counted = True  # by Redis; or here, to be told to it
        self.is_begun = False  # it has output
        self.since_s = 0.0

    def enter_bytes(self, epoch: str, lease_ms: int, how: int) -> bytes:
        """Let it in: `how` is one of the script's words for that."""
        last = f"{self.op} {epoch or '-'} {lease_ms} {how} {self.tokens} {self.micro_neurons}"
        return b"%b$%d\r\n%b\r\n" % (self.plan.enter_head, len(last), last.encode())

    def leave_bytes(self, lease_ms: int, tokens: int, spent: int) -> bytes:
        """It is over, and took so many tokens and micro-neurons."""
        last = f"{self.op} {lease_ms} {self.tokens} {tokens} {self.micro_neurons} {spent}"
        return b"%b$%d\r\n%b\r\n" % (self.plan.leave_head, len(last), last.encode())

    def begun_bytes(self) -> list[bytes]:
        """A call with output gives back its places among those that wait."""
        return [command("ZREM", item.key, self.op) for item in self.plan.waiting] if self.is_begun else []
