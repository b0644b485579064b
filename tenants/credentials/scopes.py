"""Permission groups of the API, and the scopes that each group grants.

The ids of the Workers AI groups are given by the contract; the other ids are Hearth's own and never change. An API
token stores its groups. Scopes are derived from the groups at every verification, so groups and scopes can be added to
this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PermissionGroup:
    """One permission group. `group_id` is 32 hexadecimal digits, `name` and `category` are shown by the API, and
    `resource` is the type of resource (account or user) that the group applies to."""

    group_id: str
    name: str
    category: str
    scopes: frozenset[str]
    resource: str


def _group(
    group_id: str, name: str, category: str, *scopes: str, resource: str = "com.cloudflare.api.account"
) -> PermissionGroup:
    return PermissionGroup(group_id, name, category, frozenset(scopes), resource)


_AI = "ai_and_machine_learning"
_ACCOUNT = "account_and_billing"
_USER = "com.cloudflare.api.user"

GROUPS: tuple[PermissionGroup, ...] = (
    # Read is sufficient to run models. Write is required only to create and upload fine-tunes.
    _group("a92d2450e05d4e7bb7d0a64968f83d11", "Workers AI Read", _AI, "ai:run"),
    _group("bacc64e0f6c34fc0883a1223f938a104", "Workers AI Write", _AI, "ai:run", "ai:write"),
    _group("6c80e02421494afc9ae14414ed442632", "Account Settings Read", _ACCOUNT, "account:read"),
    _group("18cb1d38bc4f4a7d9d2d1c1b0ca9a9e1", "Account Settings Write", _ACCOUNT, "account:read", "account:write"),
    _group("0cc3a61731504c89b99ec1be78b77aa0", "API Tokens Read", _ACCOUNT, "api_token:read", resource=_USER),
    _group(
        "686d18d5ac6c441c867cbf6771e58a0a",
        "API Tokens Write",
        _ACCOUNT,
        "api_token:read",
        "api_token:write",
        resource=_USER,
    ),
    _group("eb56a6953c034b9d97dd838155666f06", "Account API Tokens Read", _ACCOUNT, "account_api_token:read"),
    _group(
        "5bc3f8b21c554832afc660159ab75fa4",
        "Account API Tokens Write",
        _ACCOUNT,
        "account_api_token:read",
        "account_api_token:write",
    ),
)

ALL_SCOPES = frozenset(scope for group in GROUPS for scope in group.scopes)
"""Scopes of a user's global key on each of the user's accounts."""

PLATFORM_SCOPES = frozenset({"platform:read", "platform:write"})
"""Scopes of a platform role on the whole platform. No permission group grants them, so no API token has them."""

_BY_ID = {group.group_id: group for group in GROUPS}
_BY_NAME = {group.name.lower(): group for group in GROUPS}

WORKERS_AI_GROUPS: tuple[str, ...] = tuple(group.group_id for group in GROUPS if group.category == _AI)
"""Default groups of an API token for running models."""


def find_group(text: str) -> PermissionGroup | None:
    """Return the group with this id or name, or None. The case of names does not matter; "Edit" is an alias of
    "Write"."""
    name = text.strip().lower()
    if name.endswith(" edit"):
        name = name.removesuffix("edit") + "write"
    return _BY_ID.get(name) or _BY_NAME.get(name)


def scopes_of(group_ids: Iterable[str]) -> frozenset[str]:
    """Return all scopes that the groups grant. Unknown ids grant no scopes."""
    return frozenset(scope for group_id in group_ids if group_id in _BY_ID for scope in _BY_ID[group_id].scopes)
