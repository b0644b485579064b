"""API tokens as the OpenAPI document describes them. `api_token_bodies.py` renders them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType


class PermissionGroupResult(Struct, frozen=True):
    """A permission group of a policy."""

    id: str
    name: str


class PolicyResult(Struct, frozen=True):
    """Permission groups that are allowed or denied on resources."""

    id: str
    effect: Literal["allow", "deny"]
    permission_groups: list[PermissionGroupResult]
    resources: dict[str, str]


class RequestIpResult(Struct, frozen=True):
    """Networks that a token may and may not be used from."""

    within: list[str] | UnsetType = msgspec.field(name="in", default=UNSET)
    not_in: list[str] | UnsetType = UNSET


class ConditionResult(Struct, frozen=True):
    """The conditions of a token."""

    request_ip: RequestIpResult | UnsetType = UNSET


class RegionResult(Struct, frozen=True):
    """Countries and jurisdictions in which the token's calls may run."""

    countries: list[str]
    jurisdictions: list[str]


class ApiTokenResult(Struct, frozen=True, kw_only=True):
    """An API token. Fields that do not apply to the token are left out; `models` left out means all models."""

    id: str
    name: str
    status: str
    issued_on: str
    modified_on: str
    policies: list[PolicyResult]
    last_used_on: str | UnsetType = UNSET
    not_before: str | UnsetType = UNSET
    expires_on: str | UnsetType = UNSET
    models: list[str] | UnsetType = UNSET
    limits: str | UnsetType = UNSET
    region: RegionResult | UnsetType = UNSET
    condition: ConditionResult | UnsetType = UNSET


class CreatedApiToken(ApiTokenResult, frozen=True, kw_only=True):
    """A new API token with its secret, which is shown only here."""

    value: str


class DeletedApiToken(Struct, frozen=True):
    """The id of a deleted API token."""

    id: str


class PermissionGroupListed(Struct, frozen=True):
    """A permission group that a token may have. `scopes` are the types of resources that it applies to."""

    id: str
    name: str
    scopes: list[str]
    category: str
