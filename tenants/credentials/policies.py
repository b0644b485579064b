"""Policies of API tokens: permission groups on resources, and the scopes that they grant. Pure functions.

A resource is one account, or all accounts of the token's owner. For each scope, deny overrides allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from tenants.credentials.scopes import scopes_of

MAX_POLICIES = 50
ACCOUNT_RESOURCE = "com.cloudflare.api.account."

_ACCOUNT = re.compile(r"com\.cloudflare\.api\.account\.([0-9a-f]{32}|\*)")
_USER = re.compile(r"com\.cloudflare\.api\.user\.([0-9a-f]{32}|\*)")


class Policy(Struct, frozen=True):
    """One policy: permission group ids on resource keys, as given by the owner."""

    id: str
    effect: Literal["allow", "deny"]
    groups: tuple[str, ...]
    resources: tuple[str, ...]

    def covers(self, account_id: str) -> bool:
        """Return True if the policy applies to this account, which belongs to the token's owner."""
        return any(id in ("*", account_id) for id in self.account_ids())

    def account_ids(self) -> list[str]:
        """Return the account ids that the policy names; `*` stands for all accounts of the owner."""
        return [match[1] for key in self.resources if (match := _ACCOUNT.fullmatch(key))]


def policy_on_account(policy_id: str, groups: Iterable[str], account_id: str) -> Policy:
    """Return a policy that allows `groups` (permission group ids) on one account."""
    return Policy(policy_id, "allow", tuple(groups), (ACCOUNT_RESOURCE + account_id,))


def is_resource(key: str) -> bool:
    """Return True if a resource key names an account, all accounts, or the user."""
    return bool(_ACCOUNT.fullmatch(key) or _USER.fullmatch(key))


def scopes_on(policies: Iterable[Policy], account_id: str) -> frozenset[str]:
    """Return the scopes that the policies grant on one account."""
    return _scopes([policy for policy in policies if policy.covers(account_id)])


def scopes_anywhere(policies: Iterable[Policy]) -> frozenset[str]:
    """Return the scopes that the policies grant on any resource, for objects that belong to the owner and to no
    account."""
    return _scopes(list(policies))


def encode_policies(policies: Iterable[Policy]) -> str:
    """Encode policies for a database column. `decode_policies` is the inverse."""
    return msgspec.json.encode(list(policies)).decode()


def decode_policies(text: str) -> tuple[Policy, ...]:
    return msgspec.json.decode(text, type=tuple[Policy, ...])


def _scopes(policies: list[Policy]) -> frozenset[str]:
    allowed = scopes_of(group for policy in policies if policy.effect == "allow" for group in policy.groups)
    return allowed - scopes_of(group for policy in policies if policy.effect == "deny" for group in policy.groups)
