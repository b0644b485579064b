"""`/user/tokens` and `A/tokens`: the API tokens of the caller's user, or of the account in the path.

The same endpoints serve both: a path with an account means that account's tokens. A secret is only in the response
that created it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from msgspec import Struct
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management.api_token_bodies import TokenBody, parse_spec, render_groups, render_token
from gateway.management.api_token_results import (
    ApiTokenResult,
    CreatedApiToken,
    DeletedApiToken,
    PermissionGroupListed,
)
from gateway.management.endpoint import (
    ManagementRequest,
    PageQuery,
    change_errors,
    existing,
    invalid,
    respond,
    takes_body,
    takes_query,
)
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants import users
from tenants.credentials import api_tokens, user_tokens
from tenants.credentials.api_tokens import ApiToken
from tenants.credentials.policies import Policy, scopes_anywhere, scopes_on
from tenants.credentials.token_restrictions import Restrictions, find_excess, find_wider_limit
from tenants.credentials.user_tokens import TokenOwner, TokenSpec, TooManyTokens
from tenants.quota.limits import parse_overrides

_TOKEN_ID = re.compile(r"[0-9a-f]{32}")


class TokensQuery(PageQuery, frozen=True, kw_only=True):
    """Query parameters of the list of tokens."""

    include_expired: bool = False


class GroupsQuery(Struct, frozen=True):
    """Filters of the list of permission groups."""

    name: str = ""
    scope: str = ""


@describe(result=list[ApiTokenResult], is_paged=True)
@takes_query(TokensQuery)
async def list_(services: Services, request: ManagementRequest, query: TokensQuery) -> Response:
    """List tokens, oldest first. Expired tokens are listed only with `include_expired`."""
    found = await user_tokens.page(
        services.database,
        _holder(request),
        page=query.number,
        per_page=query.size,
        is_descending=query.is_descending,
        has_expired=query.include_expired,
        clock=services.clock,
    )
    return query.respond([render_token(token) for token in found.tokens], found.total_count)


@describe(result=CreatedApiToken)
@takes_body(TokenBody)
async def create(services: Services, request: ManagementRequest, body: TokenBody) -> Response:
    """Create a token. The response has its secret as `value`."""
    holder = _holder(request)
    spec, account_id = await _read_spec(services, holder, body)
    await _check_grant(services, request, spec)
    owner = TokenOwner(holder.kind, account_id, holder.user_id)
    pepper, context = services.settings.token_pepper, request.change_context
    try:
        with change_errors():
            created = await user_tokens.create(services.database, pepper, owner, spec, context=context)
    except TooManyTokens as error:
        raise invalid(str(error)) from None
    return respond({**render_token(created.token), "value": created.secret})


@describe(result=ApiTokenResult)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get a token, without its secret. The ETag is its version: send it as `if-match` with a change."""
    found = await user_tokens.find(services.database, _holder(request), _token_id(request), clock=services.clock)
    token = existing(found)
    return respond(render_token(token), version=token.version)


@describe(result=ApiTokenResult)
@takes_body(TokenBody)
async def update(services: Services, request: ManagementRequest, body: TokenBody) -> Response:
    """Replace everything of a token except its secret. With `if-match`, the change is refused if the token has
    changed since it was read."""
    holder = _holder(request)
    spec, _ = await _read_spec(services, holder, body)
    token_id, context = _token_id(request), request.change_context
    caller = await _check_grant(services, request, spec)
    if caller is not None and caller.api_token_id == token_id and not _has_at_most(spec.policies, caller):
        raise Refusal(Reason.TOKEN_EXCEEDED, "policies must not have more permissions than the token itself")
    with change_errors():
        changed = await user_tokens.replace(
            services.database, holder, token_id, spec, expected=request.expected_versions, context=context
        )
    return respond(render_token(changed), version=changed.version)


@describe(result=DeletedApiToken)
async def delete(services: Services, request: ManagementRequest) -> Response:
    """Revoke and delete a token."""
    token_id = _token_id(request)
    with change_errors():
        await user_tokens.delete(services.database, _holder(request), token_id, context=request.change_context)
    return respond({"id": token_id})


@describe(result=str)
async def roll(services: Services, request: ManagementRequest) -> Response:
    """Replace the secret of a token. The result is the new secret."""
    holder, token_id, context = _holder(request), _token_id(request), request.change_context
    found = await user_tokens.find(services.database, holder, token_id, clock=services.clock)
    await _check_within_caller(services, request, existing(found).restrictions)
    with change_errors():
        secret = await user_tokens.roll(
            services.database, services.settings.token_pepper, holder, token_id, context=context
        )
    return respond(secret)


@describe(result=list[PermissionGroupListed])
@takes_query(GroupsQuery)
async def list_groups(_services: Services, request: ManagementRequest, query: GroupsQuery) -> Response:
    """List the permission groups that such a token may have."""
    is_user = _holder(request).kind == "user"
    # The official clients encode these parameters twice.
    return respond(render_groups(unquote(query.name), unquote(query.scope), has_user_groups=is_user))


async def _check_grant(services: Services, request: ManagementRequest, spec: TokenSpec) -> ApiToken | None:
    """Check that a token has no more than its creator: neither than the token that makes the request, which is
    returned, nor than the limits of the accounts. Raises Refusal."""
    if request.principal.is_operator:
        return None
    limits = parse_overrides(spec.limits)
    for account_id, grant in request.principal.accounts().items():
        if not any(policy.covers(account_id) for policy in spec.policies):
            continue
        excess = find_wider_limit(limits, services.limits.in_force_on(grant.account), is_each_required=False)
        if excess:
            raise Refusal(Reason.TOKEN_EXCEEDED, f"limits must have '{excess}' at most as high as the account")
    return await _check_within_caller(services, request, spec.restrictions)


async def _check_within_caller(
    services: Services, request: ManagementRequest, granted: Restrictions
) -> ApiToken | None:
    """Check that the caller obtains or grants no more than the token that makes the request, and return that token;
    None for global keys and sessions, which have no restrictions. Raises Refusal."""
    principal = request.principal
    if principal.acts_as_user or principal.is_operator:
        return None
    caller = await api_tokens.find_by_id(services.database, principal.api_token_id, clock=services.clock)
    if caller is None:
        return None
    excess = find_excess(granted, caller.restrictions)
    if excess:
        raise Refusal(Reason.TOKEN_EXCEEDED, excess)
    return caller


def _has_at_most(policies: Sequence[Policy], caller: ApiToken) -> bool:
    """Return True if the policies grant no scope on any account that the caller's own policies do not grant."""
    named = {account_id for policy in (*policies, *caller.policies) for account_id in policy.account_ids()}
    return scopes_anywhere(policies) <= scopes_anywhere(caller.policies) and all(
        scopes_on(policies, account_id) <= scopes_on(caller.policies, account_id) for account_id in named
    )


def _holder(request: ManagementRequest) -> TokenOwner:
    account_id = request.path_params.get("account_id")
    if account_id is not None:
        return TokenOwner("account", account_id)
    principal = request.principal
    return TokenOwner("user", principal.account_id, principal.user_id)


def _token_id(request: ManagementRequest) -> str:
    """Return the token id in the path. Raises Refusal if no token can have that id."""
    api_token_id: str = request.path_params["api_token_id"]
    if not _TOKEN_ID.fullmatch(api_token_id):
        raise Refusal(Reason.OBJECT_UNKNOWN)
    return api_token_id


async def _read_spec(services: Services, holder: TokenOwner, body: TokenBody) -> tuple[TokenSpec, str]:
    """Return the specification of a token, and the account that owns the token: the first account that the token gives
    access to."""
    is_user = holder.kind == "user"
    account_ids: list[Any] = (
        await users.account_ids_of(services.database, holder.user_id)
        if holder.user_id and is_user
        else [holder.account_id]
    )
    if not account_ids:
        raise invalid("the user must be a member of an account before a token can be created")
    user_id = (holder.user_id or holder.account_id) if is_user else None
    spec = parse_spec(body, account_ids=account_ids, user_id=user_id)
    allowed = [policy for policy in spec.policies if policy.effect == "allow"]
    covered = [account_id for account_id in account_ids if any(policy.covers(account_id) for policy in allowed)]
    return spec, (covered or account_ids)[0]
