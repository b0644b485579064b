"""What an account, an API token, a task or a model is held to: rules as text, and the items that one call must pass.

A rule limits requests or tokens in a window, calls at once, or those of them that still wait for their first output.
Rules of the operator hold for everyone, or for the accounts of one plan; an account and an API token may have their
own, which take the place of those of the same name.
Pure; what is counted, and where, is `quota.py`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

from tenants.credentials.principal import Principal

Unit = Literal["requests", "tokens", "calls", "waiting"]
Kind = Literal["r", "t", "c", "b"]  # as `quota_script.py` knows them

MAX_RULES = 200
_MAX_REMEMBERED = 20_000
MAX_TEXT = 8192

# What Workers AI holds its clients to, by the minute, an account and a task; by the model where it has its own; and
# each API token in five minutes.
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
    """At most `count` of `unit` in `window_s` seconds, or (calls, waiting) at once; for accounts of `plan`, or of all.

    `subject` is `account` (all that an account does), `token` (each API token), a task or a model: the last two are an
    account's calls to it, and a model's rule takes the place of its task's.
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
_AT_ONCE = ("calls", "waiting")


def parse_rules(text: str) -> dict[str, Rule]:
    """`subject[.unit]=count[/seconds]` with commas between, a plan and a colon before those of one plan; by what is
    written before `=`, `.requests` left out. Raises ValueError."""
    found: dict[str, Rule] = {}
    if len(text) > MAX_TEXT:
        raise ValueError(f"rules are at most {MAX_TEXT} characters")
    for item in text.split(","):
        if not item.strip():
            continue
        if item.strip() == "contract":
            found |= parse_rules(CONTRACT)
            continue
        match = _RULE.fullmatch(item.strip())
        if match is None or (match["unit"] in _AT_ONCE) == bool(match["window_s"]):
            raise ValueError(FORM)
        plan, unit = match["plan"] or "", cast(Unit, match["unit"] or "requests")
        rule = Rule(match["subject"], unit, int(match["count"]), int(match["window_s"] or 0), plan)
        found[f"{plan}:{rule.name}" if plan else rule.name] = rule
    if len(found) > MAX_RULES:
        raise ValueError(f"at most {MAX_RULES} rules")
    return found


@lru_cache(maxsize=4096)
def parse_own(text: str) -> Rules:
    """Rules that an account or an API token has of its own. Raises ValueError."""
    rules = parse_rules(text)
    if any(rule.plan for rule in rules.values()):
        raise ValueError("an account's or an API token's own rules name no plan")
    return rules


def in_force(rules: Rules, plan: str, *own: Rules) -> dict[str, Rule]:
    """By name, what holds for an account of this plan: later ones take the place of earlier ones."""
    found = {rule.name: rule for rule in rules.values() if not rule.plan}
    found |= {rule.name: rule for rule in rules.values() if rule.plan == plan}
    for each in own:
        found |= each
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One thing that a call must pass, counted under `key`: a rule's window or calls at once, or a budget. The same
    only as itself, so that looking up what depends on it is quick."""

    name: str
    kind: Kind
    key: str
    limit: int
    span_ms: int = 0
    requires_redis: bool = False  # nobody passes while Redis is away; else a share of it is counted here
    ends_at_first_output: bool = False  # of kind `c`: a call's place is given back with its first output


_KINDS: dict[Unit, Kind] = {"requests": "r", "tokens": "t", "calls": "c", "waiting": "c"}


def items_of(rules: Rules, account_id: str, api_token_id: str, task: str = "", model: str = "") -> tuple[Item, ...]:
    """What `rules` in force hold a call to; without a task, a request that runs no model."""
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
    """The operator's rules, and what they and a principal's own come to."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._items: dict[tuple[str, ...], tuple[Item, ...]] = {}

    def items(self, principal: Principal, task: str = "", model: str = "") -> tuple[Item, ...]:
        """What a call of this principal is held to; without a task, a request that runs no model."""
        account = principal.account
        if not (self._rules or account.limits or principal.limits):
            return ()
        owners = (principal.account_id or principal.holder_id, principal.api_token_id, task, model)
        key = (*owners, account.plan, account.limits, principal.limits)
        found = self._items.get(key)
        if found is None:
            if len(self._items) >= _MAX_REMEMBERED:
                self._items.clear()
            rules = in_force(self._rules, account.plan, parse_own(account.limits), parse_own(principal.limits))
            found = self._items[key] = items_of(rules, *owners)
        return found
