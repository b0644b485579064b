"""API tokens as JSON: the request body of a token, its conversion to a TokenSpec, and the rendered token. Pure.

Errors name the field by its path and never contain its value.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from catalog.card import parse_model_id
from catalog.errors import InvalidModelId
from gateway.management.endpoint import change_errors, format_time, invalid
from storage.database import new_id_hex
from tenants.credentials.api_tokens import ApiToken
from tenants.credentials.conditions import MAX_NETWORKS, AddressCondition, parse_networks
from tenants.credentials.policies import ACCOUNT_RESOURCE, MAX_POLICIES, Policy, is_resource
from tenants.credentials.scopes import GROUPS, PermissionGroup, find_group
from tenants.credentials.user_tokens import TokenSpec
from tenants.quota.limits import parse_overrides
from tenants.residency import read_rule, shown_rule

MAX_GROUPS = MAX_RESOURCES = MAX_MODELS = 100

_USER_RESOURCE = "com.cloudflare.api.user."

Time = Annotated[datetime, Meta(tz=True)]
Networks = Annotated[list[str], Meta(max_length=MAX_NETWORKS, extra_json_schema={"examples": [["10.0.0.0/8"]]})]
_RESOURCE_EXAMPLE = {"examples": [{"com.cloudflare.api.account.*": "*"}]}


class PermissionGroupBody(Struct, frozen=True):
    """A reference to a permission group."""

    id: str


class PolicyBody(Struct, frozen=True):
    """Permission groups that are allowed or denied on resources."""

    effect: Literal["allow", "deny"]
    permission_groups: Annotated[list[PermissionGroupBody], Meta(min_length=1, max_length=MAX_GROUPS)]
    resources: Annotated[
        dict[str, Literal["*"]],
        Meta(min_length=1, max_length=MAX_RESOURCES, extra_json_schema=_RESOURCE_EXAMPLE),
    ]


class RequestIpBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Networks that a token may and may not be used from."""

    within: Networks | None = msgspec.field(name="in", default=None)
    not_in: Networks | None = None


# Unknown conditions are rejected: a condition that is not enforced must not look as if it were.
class ConditionBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions under which a token may be used. `request.ip` is an older name that clients still send."""

    request_ip: RequestIpBody | None = None
    request_ip_dotted: RequestIpBody | None = msgspec.field(name="request.ip", default=None)


class TokenBody(Struct, frozen=True):
    """The body that creates or replaces an API token."""

    name: str
    policies: Annotated[list[PolicyBody], Meta(min_length=1, max_length=MAX_POLICIES)]
    # Clients write back "expired" as they read it; the expiry itself is `expires_on`.
    status: Literal["active", "disabled", "expired"] = "active"
    condition: ConditionBody | None = None
    not_before: Time | None = None
    expires_on: Time | None = None
    models: Annotated[list[str], Meta(max_length=MAX_MODELS)] | None = None
    limits: Annotated[str, Meta(extra_json_schema={"examples": ["token=100/60"]})] | None = None
    region: Any = None


def parse_spec(body: TokenBody, *, account_ids: Collection[str], user_id: str | None) -> TokenSpec:
    """Return the specification of a token whose holder has these accounts.

    `user_id` is None for an account's own token. Raises Refusal.
    """
    not_before, expires_at = _utc("not_before", body.not_before), _utc("expires_on", body.expires_on)
    if not_before is not None and expires_at is not None and not_before >= expires_at:
        raise invalid("not_before must be before expires_on")
    with change_errors("region"):
        region = read_rule(body.region)
    with change_errors("limits"):
        parse_overrides(body.limits or "")
    return TokenSpec(
        name=body.name,
        policies=tuple(
            _parse_policy(policy, f"policies/{i}", account_ids, user_id) for i, policy in enumerate(body.policies)
        ),
        condition=_parse_condition(body.condition),
        not_before=not_before,
        expires_at=expires_at,
        is_disabled=body.status == "disabled",
        region=region,
        models=_parse_models(body.models),
        limits=body.limits or "",
    )


def render_token(token: ApiToken) -> dict[str, Any]:
    """Return a token as the API renders it, without its secret."""
    rendered: dict[str, Any] = {
        "id": token.api_token_id,
        "name": token.name,
        "status": token.status,
        "issued_on": format_time(token.created_at),
        "modified_on": format_time(token.modified_at or token.created_at),
        "policies": [_render_policy(policy) for policy in token.policies],
    }
    times = (("last_used_on", token.last_used_at), ("not_before", token.not_before), ("expires_on", token.expires_at))
    rendered |= {name: format_time(time) for name, time in times if time is not None}
    if token.models is not None:
        rendered["models"] = list(token.models)
    if token.limits:
        rendered["limits"] = token.limits
    if token.region is not None:
        rendered["region"] = shown_rule(token.region)
    if token.condition is not None:
        lists = {"in": list(token.condition.within), "not_in": list(token.condition.not_within)}
        rendered["condition"] = {"request_ip": {name: networks for name, networks in lists.items() if networks}}
    return rendered


def render_groups(name: str, resource: str, *, has_user_groups: bool) -> list[dict[str, Any]]:
    """Return the permission groups that a token may have, filtered by name and by kind of resource if these are
    given."""
    return [
        {"id": group.group_id, "name": group.name, "scopes": [group.resource], "category": group.category}
        for group in GROUPS
        if (has_user_groups or not _is_user_group(group))
        and (not name or name.lower() == group.name.lower())
        and (not resource or resource == group.resource)
    ]


def _parse_policy(policy: PolicyBody, path: str, account_ids: Collection[str], user_id: str | None) -> Policy:
    groups = [
        _parse_group(group.id, f"{path}/permission_groups/{i}/id", user_id)
        for i, group in enumerate(policy.permission_groups)
    ]
    for resource in policy.resources:
        _check_resource(resource, f"{path}/resources", account_ids, user_id)
    return Policy(new_id_hex(), policy.effect, tuple(dict.fromkeys(groups)), tuple(policy.resources))


def _parse_group(group_id: str, path: str, user_id: str | None) -> str:
    group = find_group(group_id)
    if group is None or group.group_id != group_id:
        raise invalid(f"{path} must be the id of a permission group; GET …/tokens/permission_groups lists them")
    if user_id is None and _is_user_group(group):
        raise invalid(f"{path} must be a permission group for accounts; this group is for users' tokens")
    return group.group_id


def _is_user_group(group: PermissionGroup) -> bool:
    return group.resource == "com.cloudflare.api.user"


def _check_resource(resource: str, path: str, account_ids: Collection[str], user_id: str | None) -> None:
    if not is_resource(resource):
        raise invalid(f"{path} must have the keys {ACCOUNT_RESOURCE}<account id> or {ACCOUNT_RESOURCE}*")
    account_id, owner_id = (resource.removeprefix(prefix) for prefix in (ACCOUNT_RESOURCE, _USER_RESOURCE))
    if account_id != resource and account_id not in ("*", *account_ids):
        raise invalid(f"{path} must name only accounts of the token's holder")
    if owner_id != resource and (user_id is None or owner_id not in ("*", user_id)):
        raise invalid(f"{path} must name only the token's holder as user")


def _render_policy(policy: Policy) -> dict[str, Any]:
    groups = [{"id": found.group_id, "name": found.name} for id_ in policy.groups if (found := find_group(id_))]
    resources = dict.fromkeys(policy.resources, "*")
    return {"id": policy.id, "effect": policy.effect, "permission_groups": groups, "resources": resources}


def _parse_condition(condition: ConditionBody | None) -> AddressCondition | None:
    if condition is None:
        return None
    addresses = condition.request_ip or condition.request_ip_dotted or RequestIpBody()
    within, not_within = _parse_networks(addresses.within, "in"), _parse_networks(addresses.not_in, "not_in")
    return AddressCondition(within, not_within) if within or not_within else None


def _parse_networks(networks: list[str] | None, name: str) -> tuple[str, ...]:
    with change_errors(f"condition/request_ip/{name}"):
        return parse_networks(networks or [])


def _parse_models(names: list[str] | None) -> tuple[str, ...] | None:
    """Return the only models that a token may run; an empty list allows none, None allows all."""
    if names is None:
        return None
    models = []
    for i, name in enumerate(names):
        try:
            models.append(parse_model_id(name))
        except InvalidModelId as error:
            raise invalid(f"models/{i}: {error}") from None
    return tuple(dict.fromkeys(models))


def _utc(name: str, time: datetime | None) -> datetime | None:
    try:
        return None if time is None else time.astimezone(UTC)
    except OverflowError:
        raise invalid(f"{name} must be a time after year 1 in UTC") from None
