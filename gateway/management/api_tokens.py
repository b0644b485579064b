"""`/user/tokens` and `A/tokens`: the API tokens of the caller's user, or of the account in the path.

One set of endpoints serves both: an account in the path says whose. A secret is in the answer that made it, and nowhere
else.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management import api_token_bodies as token_bodies
from gateway.management.objects import answer, body_of, invalid, is_true, page_query, principal_of
from gateway.services import Services
from storage.errors import Missing
from tenants import users
from tenants.credentials import user_tokens
from tenants.credentials.user_tokens import Holder, TokenSpec, TooManyTokens

_TOKEN_ID = re.compile(r"[0-9a-f]{32}")


async def list_(services: Services, request: Request) -> Response:
    """One page, oldest first; those that have expired only where they are asked for."""
    query = page_query(request)
    found = await user_tokens.page(
        services.database,
        _holder(request),
        page=query.page,
        per_page=query.per_page,
        is_descending=query.is_descending,
        has_expired=is_true(request, "include_expired"),
        clock=services.clock,
    )
    return query.answer([token_bodies.shown_token(token) for token in found.tokens], found.total_count)


async def create(services: Services, request: Request) -> Response:
    """A new token, with its secret as `value`."""
    holder = _holder(request)
    spec, account_id = await _read(services, request, holder)
    holder = Holder(holder.kind, account_id, holder.user_id)
    try:
        created = await user_tokens.create(
            services.database,
            services.settings.token_pepper,
            holder,
            spec,
            who=principal_of(request).api_token_id,
            clock=services.clock,
        )
    except (ValueError, TooManyTokens) as error:
        raise invalid(str(error)) from None
    return answer({**token_bodies.shown_token(created.token), "value": created.secret})


async def get(services: Services, request: Request) -> Response:
    """One token, without its secret."""
    found = await user_tokens.find(services.database, _holder(request), _id(request), clock=services.clock)
    if found is None:
        raise Refusal(Reason.OBJECT_UNKNOWN)
    return answer(token_bodies.shown_token(found))


async def update(services: Services, request: Request) -> Response:
    """Everything but the secret, anew."""
    holder = _holder(request)
    spec, _ = await _read(services, request, holder)
    try:
        changed = await user_tokens.replace(
            services.database,
            holder,
            _id(request),
            spec,
            who=principal_of(request).api_token_id,
            ephemeral=services.ephemeral,
            clock=services.clock,
        )
    except Missing:
        raise Refusal(Reason.OBJECT_UNKNOWN) from None
    except ValueError as error:
        raise invalid(str(error)) from None
    return answer(token_bodies.shown_token(changed))


async def delete(services: Services, request: Request) -> Response:
    """Revoke a token for good."""
    who = principal_of(request).api_token_id
    try:
        await user_tokens.delete(
            services.database,
            _holder(request),
            _id(request),
            who=who,
            ephemeral=services.ephemeral,
            clock=services.clock,
        )
    except Missing:
        raise Refusal(Reason.OBJECT_UNKNOWN) from None
    return answer({"id": _id(request)})


async def roll(services: Services, request: Request) -> Response:
    """A new secret for the token; the answer is its text."""
    try:
        secret = await user_tokens.roll(
            services.database,
            services.settings.token_pepper,
            _holder(request),
            _id(request),
            who=principal_of(request).api_token_id,
            ephemeral=services.ephemeral,
            clock=services.clock,
        )
    except Missing:
        raise Refusal(Reason.OBJECT_UNKNOWN) from None
    return answer(secret)


async def list_groups(_services: Services, request: Request) -> Response:
    """Every permission group that such a token may have."""
    name, scope = (unquote(request.query_params.get(field, "")) for field in ("name", "scope"))
    has_user_groups = _holder(request).kind == "user"
    return answer(token_bodies.shown_groups(name, scope, has_user_groups=has_user_groups))


def _holder(request: Request) -> Holder:
    account_id = request.path_params.get("account_id")
    if account_id is not None:
        return Holder("account", account_id)
    principal = principal_of(request)
    return Holder("user", principal.account_id, principal.user_id)


def _id(request: Request) -> str:
    """Raises Refusal for what no token can be called: a database need not take every text."""
    api_token_id: str = request.path_params["api_token_id"]
    if not _TOKEN_ID.fullmatch(api_token_id):
        raise Refusal(Reason.OBJECT_UNKNOWN)
    return api_token_id


async def _read(services: Services, request: Request, holder: Holder) -> tuple[TokenSpec, str]:
    """What the body decides, and the account that the token is of: the first that it opens."""
    held = (
        await users.account_ids_of(services.database, holder.user_id)
        if holder.user_id and holder.kind == "user"
        else [holder.account_id]
    )
    if not held:
        raise invalid("this user has no account that a token could be for")
    user_id = (holder.user_id or holder.account_id) if holder.kind == "user" else None
    spec = token_bodies.read_spec(await body_of(services, request), account_ids=held, user_id=user_id)
    allowed = [policy for policy in spec.policies if policy.effect == "allow"]
    opened = [account_id for account_id in held if any(policy.covers(account_id) for policy in allowed)]
    return spec, (opened or held)[0]
