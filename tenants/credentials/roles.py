"""Member roles: limit what a member of an account may do, whatever credential the member uses. Pure functions.

A role limits scopes: a user's API token or global key has only those of its scopes on an account that the user's role
there allows.
"""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

from tenants.credentials.scopes import ALL_SCOPES, PLATFORM_SCOPES

Role = Literal["administrator", "developer", "viewer"]
ROLES: tuple[Role, ...] = get_args(Role)

OPERATOR_ROLES: tuple[Role, ...] = ("administrator", "viewer")
"""Roles that can apply to the whole platform: manage or read."""

_NAMES: dict[Role, str] = {
    "administrator": "Administrator",
    "developer": "Workers AI Developer",
    "viewer": "Administrator Read Only",
}


def parse_role(text: str) -> Role:
    """Parse a role name. Raises ValueError for an unknown role."""
    if text in ROLES:
        return text
    raise ValueError(f"role must be one of {', '.join(ROLES)} (got {text!r})")


def shown_role(role: Role) -> str:
    """Return the role's name in API responses."""
    return _NAMES[role]


def role_id(role: Role) -> str:
    """Return the role's id in API responses, which never changes."""
    return hashlib.sha256(f"role:{role}".encode()).hexdigest()[:32]


def permissions_of(role: Role) -> dict[str, tuple[bool, bool]]:
    """Return what the role allows as (may read, may edit) by kind of objects, as API responses show it."""
    scopes = bounded(ALL_SCOPES, role)
    may_manage = "account:write" in scopes
    return {
        "organization": (True, may_manage),
        "billing": (True, may_manage),
        "analytics": (True, False),
        "logs": (True, False),
        "ai": ("ai:run" in scopes, "ai:write" in scopes),
    }


def bounded(scopes: frozenset[str], role: Role) -> frozenset[str]:
    """Return the scopes that the role allows.

    An administrator keeps all scopes, a developer may run models and read everything, and a viewer may only read.
    """
    if role == "administrator":
        return scopes
    is_developer = role == "developer"
    return frozenset(s for s in scopes if s.endswith(":read") or (is_developer and s.startswith(("ai:", "api_token:"))))


def operator_scopes(role: Role) -> frozenset[str]:
    """Return an operator's scopes on the platform and on every account: manage or read, as the role allows.

    Operators never run or change models, because that would be charged to the account. Operators have no API tokens.
    """
    return frozenset(s for s in bounded(ALL_SCOPES | PLATFORM_SCOPES, role) if not s.startswith(("ai:", "api_token:")))
