"""API tokens as the API writes them: a body -> what a holder decides, and a token -> the object that is shown. Pure.

Refusals name the field by its path, never its value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from catalog.card import parse_model_id
from catalog.errors import InvalidModelId
from gateway.management.objects import invalid, shown_time
from storage.database import new_id_hex
from tenants.credentials.api_tokens import ApiToken
from tenants.credentials.conditions import AddressCondition, parse_networks
from tenants.credentials.policies import ACCOUNT_RESOURCE, MAX_POLICIES, Policy, is_resource
from tenants.credentials.scopes import GROUPS, PermissionGroup, find_group
from tenants.credentials.user_tokens import TokenSpec
from tenants.quota.limits import parse_own
from tenants.residency import RegionRule, read_rule, shown_rule

MAX_GROUPS = MAX_RESOURCES = MAX_MODELS = 100

_USER_RESOURCE = "com.cloudflare.api.user."


def read_spec(body: Mapping[str, Any], *, account_ids: Collection[str], user_id: str | None) -> TokenSpec:
    """What a body decides about a token whose holder has these accounts; `user_id` None for an account's own token.
    Raises Refusal."""
    name = body.get("name")
    if not isinstance(name, str):
        raise invalid("name must be text")
    policies = body.get("policies")
    if not isinstance(policies, list) or not 1 <= len(policies) <= MAX_POLICIES:
        raise invalid(f"policies must be a list of 1 to {MAX_POLICIES}")
    status = body.get("status", "active")
    if status not in ("active", "disabled", "expired"):  # expired is what a token says that is written back
        raise invalid("status must be active or disabled")
    spec = TokenSpec(
        name=name,
        policies=tuple(_policy(policy, f"policies/{i}", account_ids, user_id) for i, policy in enumerate(policies)),
        condition=_condition(body.get("condition")),
        not_before=_time(body, "not_before"),
        expires_at=_time(body, "expires_on"),
        is_disabled=status == "disabled",
        region=_region(body.get("region")),
        models=_models(body.get("models")),
        limits=_limits(body.get("limits")),
    )
    if spec.not_before is not None and spec.expires_at is not None and spec.not_before >= spec.expires_at:
        raise invalid("not_before must be before expires_on")
    return spec


def shown_token(token: ApiToken) -> dict[str, Any]:
    """The object of the API."""
    shown: dict[str, Any] = {
        "id": token.api_token_id,
        "name": token.name,
        "status": token.status,
        "issued_on": shown_time(token.created_at),
        "modified_on": shown_time(token.modified_at or token.created_at),
        "policies": [_shown_policy(policy) for policy in token.policies],
    }
    times = (("last_used_on", token.last_used_at), ("not_before", token.not_before), ("expires_on", token.expires_at))
    for name, time in times:
        if time is not None:
            shown[name] = shown_time(time)
    if token.models is not None:
        shown["models"] = list(token.models)
    if token.limits:
        shown["limits"] = token.limits
    if token.region is not None:
        shown["region"] = shown_rule(token.region)
    if token.condition is not None:
        listed = {"in": list(token.condition.within), "not_in": list(token.condition.not_within)}
        shown["condition"] = {"request_ip": {name: networks for name, networks in listed.items() if networks}}
    return shown


def shown_groups(name: str, resource: str, *, has_user_groups: bool) -> list[dict[str, Any]]:
    """The permission groups that a token of this holder may have, filtered by name and by kind of resource."""
    return [
        {"id": group.group_id, "name": group.name, "scopes": [group.resource], "category": group.category}
        for group in GROUPS
        if (has_user_groups or not _is_of_users(group))
        and (not name or name.lower() == group.name.lower())
        and (not resource or resource == group.resource)
    ]


def _policy(value: Any, path: str, account_ids: Collection[str], user_id: str | None) -> Policy:
    if not isinstance(value, dict):
        raise invalid(f"{path} must be an object")
    effect = value.get("effect")
    if effect not in ("allow", "deny"):
        raise invalid(f"{path}/effect must be allow or deny")
    groups = value.get("permission_groups")
    if not isinstance(groups, list) or not 1 <= len(groups) <= MAX_GROUPS:
        raise invalid(f"{path}/permission_groups must be a list of 1 to {MAX_GROUPS}")
    ids = [_group(group, f"{path}/permission_groups/{i}", user_id) for i, group in enumerate(groups)]
    resources = value.get("resources")
    if not isinstance(resources, dict) or not 1 <= len(resources) <= MAX_RESOURCES:
        raise invalid(f"{path}/resources must be an object of 1 to {MAX_RESOURCES} members")
    for key, what in resources.items():
        _check_resource(key, what, f"{path}/resources", account_ids, user_id)
    return Policy(new_id_hex(), effect, tuple(dict.fromkeys(ids)), tuple(resources))


def _group(value: Any, path: str, user_id: str | None) -> str:
    named = value.get("id") if isinstance(value, dict) else None
    group = find_group(named) if isinstance(named, str) else None
    if group is None or group.group_id != named:
        raise invalid(f"{path}/id is no permission group: see permission_groups")
    if user_id is None and _is_of_users(group):
        raise invalid(f"{path}/id is a group for users' tokens")
    return group.group_id


def _is_of_users(group: PermissionGroup) -> bool:
    return group.resource == "com.cloudflare.api.user"


def _check_resource(key: str, what: Any, path: str, account_ids: Collection[str], user_id: str | None) -> None:
    if not is_resource(key) or what != "*":
        raise invalid(f'{path} must be {ACCOUNT_RESOURCE}<account id>, or {ACCOUNT_RESOURCE}*, with the value "*"')
    if key.startswith(ACCOUNT_RESOURCE) and key.removeprefix(ACCOUNT_RESOURCE) not in ("*", *account_ids):
        raise invalid(f"{path} names an account that is not the holder's")
    if key.startswith(_USER_RESOURCE) and (user_id is None or key.removeprefix(_USER_RESOURCE) not in ("*", user_id)):
        raise invalid(f"{path} names a user who is not the holder")


def _shown_policy(policy: Policy) -> dict[str, Any]:
    groups = [{"id": found.group_id, "name": found.name} for id_ in policy.groups if (found := find_group(id_))]
    resources = dict.fromkeys(policy.resources, "*")
    return {"id": policy.id, "effect": policy.effect, "permission_groups": groups, "resources": resources}


def _condition(value: Any) -> AddressCondition | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid("condition must be an object")
    unknown = sorted(value.keys() - {"request_ip", "request.ip"})
    if unknown:
        raise invalid("condition may hold request_ip only")  # what cannot be judged must not seem to be
    addresses = value.get("request_ip", value.get("request.ip")) or {}
    if not isinstance(addresses, dict) or addresses.keys() - {"in", "not_in"}:
        raise invalid("condition/request_ip must be an object of in and not_in")
    within, not_within = (_network_list(addresses, name) for name in ("in", "not_in"))
    return AddressCondition(within, not_within) if within or not_within else None


def _models(value: Any) -> tuple[str, ...] | None:
    """The only models that a token may run; an empty list is none of them."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MAX_MODELS:
        raise invalid(f"models must be a list of at most {MAX_MODELS} model ids")
    found = []
    for number, name in enumerate(value):
        try:
            found.append(parse_model_id(name if isinstance(name, str) else ""))
        except InvalidModelId as error:
            raise invalid(f"models/{number}: {error}") from None
    return tuple(dict.fromkeys(found))


def _limits(value: Any) -> str:
    """Rules of the token's own."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise invalid("limits must be text such as token=100/60, token.calls=4")
    try:
        parse_own(value)
    except ValueError as error:
        raise invalid(f"limits: {error}") from None
    return value


def _region(value: Any) -> RegionRule | None:
    try:
        return read_rule(value)
    except ValueError as error:
        raise invalid(f"region: {error}") from None


def _network_list(addresses: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = addresses.get(name) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise invalid(f"condition/request_ip/{name} must be a list of networks")
    try:
        return parse_networks(texts)
    except ValueError as error:
        raise invalid(f"condition/request_ip/{name}: {error}") from None


def _time(body: Mapping[str, Any], name: str) -> datetime | None:
    value = body.get(name)
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
        time = None if time is None or time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        time = None
    if time is None:
        raise invalid(f"{name} must be a time in ISO 8601 with its zone, such as 2027-01-01T00:00:00Z")
    return time
