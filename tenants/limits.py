"""How many requests an account, or one API token, may make in a window: counted here, shared with the other gateways.

Windows are fixed and begin at whole multiples of their length, by the wall clock, so that all gateways mean the same
one. A decision is a memory read: what this process counted, and what all had counted at the last exchange, a second ago
at most. While the counters are away each process counts for itself. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from storage.errors import StoreUnavailable
from telemetry.clock import Clock

EXCHANGE_INTERVAL_S = 1.0

# Requests per minute of an account, for each task; and of each API token, in five minutes.
CONTRACT = "text-generation=300/60, text-embeddings=3000/60, token=1200/300"

_RULE = re.compile(r"([a-z][a-z-]*)=([1-9][0-9]{0,8})/([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Rule:
    """At most `count` requests in `window_s` seconds."""

    count: int
    window_s: int


class Counters(Protocol):
    """Shared counters with an expiry."""

    async def add(self, counts: Mapping[str, int], ttl_s: float) -> dict[str, int]: ...


def parse_rules(text: str) -> dict[str, Rule]:
    """`task=count/seconds`, with commas between; `token` is about each API token; `contract` stands for CONTRACT.
    Raises ValueError."""
    rules = {}
    for item in (CONTRACT if text.strip() == "contract" else text).split(","):
        if not item.strip():
            continue
        match = _RULE.fullmatch(item.strip())
        if match is None:
            raise ValueError("must be contract, or like text-generation=300/60, token=1200/300")
        rules[match[1]] = Rule(int(match[2]), int(match[3]))
    return rules


@dataclass(frozen=True, slots=True)
class Standing:
    """How a request stands to the rule that is nearest to refusing: this one is counted if `is_admitted`."""

    rule: Rule
    remaining: int
    reset_s: int
    is_admitted: bool


@dataclass(slots=True)
class _Count:
    """One key's requests in the current window: `shared` by all gateways at the last exchange, and since `unsent`."""

    window: int
    shared: int = 0
    unsent: int = 0


class Limits:
    """The windows of all accounts and tokens that this process has seen lately."""

    def __init__(self, rules: Mapping[str, Rule], counters: Counters, clock: Clock) -> None:
        self._rules = dict(rules)
        self._counters = counters
        self._clock = clock
        self._counts: dict[tuple[str, str], _Count] = {}  # by rule and owner

    def take(self, account_id: str, api_token_id: str, task: str) -> tuple[str, Standing] | None:
        """Count one request, if every rule lets it in; the rule that is nearest to refusing, or does, and how it
        stands. None where no rule is about it."""
        asked = [(name, owner) for name, owner in ((task, account_id), ("token", api_token_id)) if name in self._rules]
        if not asked:
            return None
        now_s = self._clock.now().timestamp()
        found = [(name, self._count(name, owner, now_s)) for name, owner in asked]
        is_admitted = all(count.shared + count.unsent < self._rules[name].count for name, count in found)
        if is_admitted:
            for _, count in found:
                count.unsent += 1
        name, count = min(found, key=lambda entry: self._rules[entry[0]].count - entry[1].shared - entry[1].unsent)
        rule = self._rules[name]
        remaining = max(0, rule.count - count.shared - count.unsent)
        reset_s = rule.window_s - int(now_s) % rule.window_s
        return name, Standing(rule, remaining, reset_s, is_admitted)

    def _count(self, name: str, owner: str, now_s: float) -> _Count:
        window = int(now_s) // self._rules[name].window_s
        count = self._counts.get((name, owner))
        if count is None or count.window != window:
            count = self._counts[name, owner] = _Count(window)
        return count

    async def run(self) -> None:
        """Exchange counts with the other gateways, for ever."""
        while self._rules:
            await asyncio.sleep(EXCHANGE_INTERVAL_S)
            await self.exchange()

    async def exchange(self) -> None:
        """Tell what was counted since the last time, and learn what all have counted. Forgets windows that are over."""
        now_s = self._clock.now().timestamp()
        for (name, owner), count in list(self._counts.items()):
            if count.window != int(now_s) // self._rules[name].window_s:
                del self._counts[name, owner]
        for name, rule in self._rules.items():
            mine = {owner: count for (rule_name, owner), count in self._counts.items() if rule_name == name}
            if mine:
                await self._exchange(name, rule, mine)

    async def _exchange(self, name: str, rule: Rule, mine: dict[str, _Count]) -> None:
        sent = {owner: count.unsent for owner, count in mine.items()}
        keys = {owner: f"limit:{name}:{owner}:{count.window}" for owner, count in mine.items()}
        try:
            totals = await self._counters.add({keys[owner]: num for owner, num in sent.items()}, 2 * rule.window_s)
        except StoreUnavailable:
            return
        for owner, count in mine.items():
            count.shared = totals[keys[owner]]
            count.unsent -= sent[owner]
