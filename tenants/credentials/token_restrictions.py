"""Compare the restrictions of API tokens: a token must not grant more than it holds. Pure functions.

The restrictions of a token are its models, networks, expiry, region and rate limits. Permission groups are not
compared: to create tokens with any permission group of the owner is what the permission to create tokens means.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from tenants.credentials.conditions import AddressCondition, Network
from tenants.quota.limits import Rule, Rules, parse_overrides
from tenants.residency import RegionRule


@dataclass(frozen=True)
class Restrictions:
    """The restrictions of a token, or of what a caller wants to grant. The defaults restrict nothing."""

    models: Collection[str] | None = None
    condition: AddressCondition | None = None
    expires_at: datetime | None = None
    region: RegionRule | None = None
    limits: str = ""


def find_excess(granted: Restrictions, held: Restrictions) -> str:
    """Return which restriction of `held` is missing or wider in `granted`, as a sentence, or "" if there is none."""
    if held.models is not None and (granted.models is None or not set(granted.models) <= set(held.models)):
        return "models must be among those of the token that makes the request"
    if not _is_within_networks(granted.condition, held.condition):
        return "condition/request_ip must be within that of the token that makes the request"
    if held.expires_at is not None and (granted.expires_at is None or granted.expires_at > held.expires_at):
        return "expires_on must not be later than that of the token that makes the request"
    if held.region is not None and (granted.region is None or not held.region.covers(granted.region)):
        return "region must be within that of the token that makes the request"
    excess = find_wider_limit(parse_overrides(granted.limits), parse_overrides(held.limits), is_each_required=True)
    return f"limits must have '{excess}' at most as high as the token that makes the request" if excess else ""


def find_wider_limit(granted: Rules, held: Rules, *, is_each_required: bool) -> str:
    """Return the name of a rule of `held` that is wider in `granted`, or that is missing there if each is required; ""
    if there is none."""
    for name, rule in held.items():
        own = granted.get(name)
        if (own is None and is_each_required) or (own is not None and not _is_within_limit(own, rule)):
            return name
    return ""


def _is_within_limit(rule: Rule, other: Rule) -> bool:
    """Return True if `rule` admits neither more at once nor more per second."""
    return rule.count <= other.count and rule.count * other.window_s <= other.count * rule.window_s


def _is_within_networks(granted: AddressCondition | None, held: AddressCondition | None) -> bool:
    """Return True if every address that `granted` admits is certainly admitted by `held`."""
    if held is None:
        return True
    if granted is None:
        return False
    admitted, rejected = _networks(granted.within), _networks(granted.not_within)
    if held.within and not (admitted and all(_is_covered(each, _networks(held.within)) for each in admitted)):
        return False
    return all(
        _is_covered(each, rejected) or (bool(admitted) and not any(_overlap(each, other) for other in admitted))
        for each in _networks(held.not_within)
    )


def _networks(texts: Collection[str]) -> list[Network]:
    return [ipaddress.ip_network(text, strict=False) for text in texts]


def _is_covered(network: Network, others: Collection[Network]) -> bool:
    return any(_overlap(network, other) and network.prefixlen >= other.prefixlen for other in others)


def _overlap(one: Network, other: Network) -> bool:
    return one.version == other.version and one.overlaps(other)
