"""Permission groups, as the API speaks of them, and the scopes that each opens, as the code asks for them.

The ids of the Workers AI groups are the contract's; the others are ours, minted once and never changed. An API token
keeps its groups; scopes are derived from them at every verification, so this table may grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PermissionGroup:
    """One row of the table: id (32 hex), name and category as the API shows them, what it opens, and whether that
    belongs to an account or to a user."""

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
    # Read is enough to run models; Write is asked for only to create and upload fine-tunes.
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
"""What a user's global key opens on each of the user's accounts."""

_BY_ID = {group.group_id: group for group in GROUPS}
_BY_NAME = {group.name.lower(): group for group in GROUPS}

WORKERS_AI_GROUPS: tuple[str, ...] = tuple(group.group_id for group in GROUPS if group.category == _AI)
"""What an API token for calling models holds unless something else is asked for."""


def find_group(text: str) -> PermissionGroup | None:
    """A group by its id or, whatever the case, by its name; "Edit" is what people see for "Write"."""
    name = text.strip().lower()
    if name.endswith(" edit"):
        name = name.removesuffix("edit") + "write"
    return _BY_ID.get(name) or _BY_NAME.get(name)


def scopes_of(group_ids: Iterable[str]) -> frozenset[str]:
    """Every scope that one of the groups opens; an id that this version does not know opens none."""
    return frozenset(scope for group_id in group_ids if group_id in _BY_ID for scope in _BY_ID[group_id].scopes)
