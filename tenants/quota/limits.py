"""Rate limit rules of accounts, API tokens, tasks and models: parsing, and the items that apply to one call.

A rule limits requests or tokens in a window, concurrent calls, or concurrent calls without output. The operator's rules
apply to all accounts or to the accounts of one plan; rules of an account or API token replace those of the same name.
Pure; `quota.py` counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

from telemetry.bounded_cache import BoundedCache
from tenants.credentials.principal import AccountTerms, Principal

Unit = Literal["requests", "tokens", "calls", "waiting"]
Kind = Literal["r", "t", "c", "b"]  # the kinds of `quota_script.py`

MAX_RULES = 200
_MAX_CACHED = 20_000
MAX_TEXT = 8192

# The limits of Workers AI: per minute, account and task; per model where it has its own; and per API token in five
# minutes.
CONTRACT = (
    "text-generation=300/60, text-embeddings=3000/60, text-classification=2000/60, summarization=1500/60, "
    "translation=720/60, automatic-speech-recognition=720/60, image-classification=3000/60, image-to-text=720/60, "
    "object-detection=3000/60, text-to-image=720/60, token=1200/300, "
    "@cf/baai/bge-large-en-v1.5=1500/60, @cf/runwayml/stable-diffusion-v1-5-img2img=1500/60, "
    "@cf/zai-org/glm-5.3=20/60, @cf/zai-org/glm-5.3-flash=20/60, @cf/zai-org/glm-5.2=20/60, "
    "@cf/deepseek-ai/deepseek-v4-pro-0813=20/60, @cf/deepseek-ai/deepseek-v4-flash-0731=20/60, "
    "@cf/moonshotai/kimi-k2.7-code=20/60, @cf/moonshotai/kimi-k2.6=20/60"
)
FORM = (
    "must be contract, or like text-generation=300/60, token=1200/300, account.tokens=100000/60, account.calls=20, "
    "account.waiting=8, free:account.calls=4"
)

_RULE = re.compile(
    r"(?:(?P<plan>[a-z][a-z0-9_-]{0,31}):)?"
    r"(?P<subject>[a-z][a-z-]{0,63}|@(?:cf|hf)/[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}?)"
    r"(?:\.(?P<unit>requests|tokens|calls|waiting))?"
    r"=(?P<count>[1-9][0-9]{0,11})(?:/(?P<window_s>[1-9][0-9]{0,6}))?"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """At most `count` of `unit` in `window_s` seconds, or concurrently (calls, waiting); for accounts of `plan`, or
    all accounts.

    `subject` is `account`, `token` (each API token), a task or a model. The last two limit an account's calls to it; a
    model's rule replaces its task's.
    """

    subject: str
    unit: Unit
    count: int
    window_s: int = 0
    plan: str = ""

    @property
    def name(self) -> str:
        return self.subject if self.unit == "requests" else f"{self.subject}.{self.unit}"


Rules = Mapping[str, Rule]
_CONCURRENT = ("calls", "waiting")


def parse_rules(text: str) -> dict[str, Rule]:
    """Parse comma-separated rules `[plan:]subject[.unit]=count[/seconds]`. Returns them by the text before `=`,
    without `.requests`. Raises ValueError."""
    found: dict[str, Rule] = {}
    if len(text) > MAX_TEXT:
        raise ValueError(f"rules must have at most {MAX_TEXT} characters (got {len(text)})")
    for item in text.split(","):
        if not item.strip():
            continue
        if item.strip() == "contract":
            found |= parse_rules(CONTRACT)
            continue
        match = _RULE.fullmatch(item.strip())
        if match is None or (match["unit"] in _CONCURRENT) == bool(match["window_s"]):
            raise ValueError(FORM)
        plan, unit = match["plan"] or "", cast(Unit, match["unit"] or "requests")
        rule = Rule(match["subject"], unit, int(match["count"]), int(match["window_s"] or 0), plan)
        found[f"{plan}:{rule.name}" if plan else rule.name] = rule
    if len(found) > MAX_RULES:
        raise ValueError(f"must have at most {MAX_RULES} rules (got {len(found)})")
    return found


@lru_cache(maxsize=4096)
def parse_overrides(text: str) -> Rules:
    """Parse the rules of an account or API token. Raises ValueError."""
    rules = parse_rules(text)
    if any(rule.plan for rule in rules.values()):
        raise ValueError("rules of an account or API token must not name a plan")
    return rules


def in_force(rules: Rules, plan: str, *own: Rules) -> dict[str, Rule]:
    """Return the rules for an account of this plan by name; later ones replace earlier ones."""
    found = {rule.name: rule for rule in rules.values() if not rule.plan}
    found |= {rule.name: rule for rule in rules.values() if rule.plan == plan}
    for each in own:
        found |= each
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One limit that applies to a call, counted under `key`: a rule's window or concurrency, or a budget. Compared by
    identity, which makes lookups fast."""

    name: str
    kind: Kind
    key: str
    limit: int
    span_ms: int = 0
    requires_redis: bool = False  # True for budgets, whose calls are rejected while Redis is unavailable
    ends_at_first_output: bool = False  # for kind `c`: released at the call's first output


_KINDS: dict[Unit, Kind] = {"requests": "r", "tokens": "t", "calls": "c", "waiting": "c"}


def items_of(rules: Rules, account_id: str, api_token_id: str, task: str = "", model: str = "") -> tuple[Item, ...]:
    """Return the items that apply to a call; without a task, to a request that runs no model."""
    found = []
    for unit, kind in _KINDS.items():
        suffix = "" if unit == "requests" else f".{unit}"
        subjects = [("account", account_id), ("token", api_token_id)]
        if task:
            of_model = bool(model) and model + suffix in rules
            subjects.append((model if of_model else task, account_id))
        for subject, owner in subjects:
            rule = rules.get(subject + suffix)
            if rule is not None:
                is_waiting = unit == "waiting"
                key = f"quota:{'w' if is_waiting else kind}:{subject}:{owner}"
                found.append(
                    Item(rule.name, kind, key, rule.count, rule.window_s * 1000, ends_at_first_output=is_waiting)
                )
    return tuple(found)


class Limits:
    """The operator's rules combined with those of a principal."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._items: BoundedCache[tuple[str, ...], tuple[Item, ...]] = BoundedCache(_MAX_CACHED)

    def in_force_on(self, account: AccountTerms) -> Rules:
        """Return the rules that apply to an account, whatever credential is used."""
        return in_force(self._rules, account.plan, parse_overrides(account.limits))

    def items(self, principal: Principal, task: str = "", model: str = "") -> tuple[Item, ...]:
        """Return the items that apply to a principal's call; without a task, to a request that runs no model."""
        account = principal.account
        if not (self._rules or account.limits or principal.limits):
            return ()
        owners = (principal.account_id or principal.holder_id, principal.api_token_id, task, model)
        key = (*owners, account.plan, account.limits, principal.limits)
        found = self._items.get(key)
        if found is None:
            rules = in_force(
                self._rules, account.plan, parse_overrides(account.limits), parse_overrides(principal.limits)
            )
            found = items_of(rules, *owners)
            self._items.put(key, found)
        return found
