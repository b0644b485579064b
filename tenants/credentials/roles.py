"""What a member of an account may do there at most, whatever credential the member holds. Pure; knows no rows.

A role bounds scopes: what a user's API token or global key opens on an account is what it says and the role lets.
"""

from __future__ import annotations

from typing import Literal, get_args

from tenants.credentials.scopes import ALL_SCOPES

Role = Literal["administrator", "developer", "viewer"]
ROLES: tuple[Role, ...] = get_args(Role)

OPERATOR_ROLES: tuple[Role, ...] = ("administrator", "viewer")
"""Those that somebody may have on the whole platform: to manage, or to see."""

_NAMES: dict[Role, str] = {
    "administrator": "Administrator",
    "developer": "Workers AI Developer",
    "viewer": "Administrator Read Only",
}


def parse_role(text: str) -> Role:
    """Raises ValueError for what is no role."""
    for role in ROLES:
        if role == text:
            return role
    raise ValueError(f"a role is one of {', '.join(ROLES)}")


def shown_role(role: Role) -> str:
    """As the API writes it."""
    return _NAMES[role]


def bounded(scopes: frozenset[str], role: Role) -> frozenset[str]:
    """Those that the role lets: an administrator's are all; a developer runs models and sees everything; a viewer only
    sees."""
    if role == "administrator":
        return scopes
    is_developer = role == "developer"
    return frozenset(s for s in scopes if s.endswith(":read") or (is_developer and s.startswith(("ai:", "api_token:"))))


def operator_scopes(role: Role) -> frozenset[str]:
    """What an operator may do on every account: manage, or see, as the role lets; never run or change a model, which
    would be at the account's cost. An operator has no tokens of its own."""
    return frozenset(s for s in bounded(ALL_SCOPES, role) if not s.startswith(("ai:", "api_token:")))
