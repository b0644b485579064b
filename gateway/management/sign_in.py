"""`/admin/…`: people sign in with a password, a one-time link or an OpenID provider, see their session, and sign out.

Without HEARTH_OIDC_ISSUER, the routes of the provider do not exist. The session cookie is SameSite=Strict and HttpOnly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway.authentication import client_address
from gateway.errors import Reason, Refusal
from gateway.management.endpoint import ManagementRequest, format_time, respond, takes_body
from gateway.services import Services
from tenants import accounts, operators, users
from tenants.change_context import ChangeContext
from tenants.credentials.web_sessions import SessionOwner

if TYPE_CHECKING:
    from gateway.management.operators import Operators

_PRIVATE = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
# A page instead of a redirect: a redirect would still count as started by the provider's site, so the browser would not
# send the SameSite=Strict session cookie.
_SIGNED_IN = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/dashboard">
<title>Signed in</title></head><body><p>Signed in. <a href="/dashboard">Continue</a></p></body></html>
"""
_PAGE_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class PasswordBody(Struct, frozen=True):
    """The body of a sign-in with a password."""

    email: Annotated[str, Meta(max_length=254)]
    password: Annotated[str, Meta(max_length=1024)]


class LinkBody(Struct, frozen=True):
    """The body of a sign-in with a one-time link: the fragment of the link's URL."""

    token: Annotated[str, Meta(max_length=128)]


async def methods(services: Services, _request: Request) -> Response:
    """Get the ways in which people can sign in."""
    return _private(respond({"password": True, "oidc": services.operators is not None}))


@takes_body(PasswordBody)
async def with_password(services: Services, request: ManagementRequest, body: PasswordBody) -> Response:
    """Sign in with email and password, and start a new session."""
    address = client_address(services, request.headers.raw, request.exchange.peer)
    cookie = await services.user_sign_in.with_password(request.headers.raw, body.email, body.password, address)
    return _private(respond({}), cookie)


@takes_body(LinkBody)
async def with_link(services: Services, request: ManagementRequest, body: LinkBody) -> Response:
    """Sign in with a one-time link, and start a new session."""
    cookie = await services.user_sign_in.with_link(request.headers.raw, body.token)
    return _private(respond({}), cookie)


async def begin(services: Services, request: Request) -> Response:
    """Redirect to the provider."""
    url, cookie = await _provider(services).begin(request.headers.raw)
    return _private(Response(status_code=302, headers={"location": url}), cookie)


async def finish(services: Services, request: Request) -> Response:
    """Complete the sign-in after the provider's redirect and start a new session."""
    provider, query = _provider(services), request.query_params
    if len(query) != len(query.multi_items()):
        raise Refusal(Reason.SIGN_IN_FAILED, "a query parameter is repeated")
    cookies = await provider.finish(request.headers.raw, query)
    headers = {"content-security-policy": _PAGE_POLICY}
    return _private(Response(_SIGNED_IN, media_type="text/html", headers=headers), *cookies)


async def session(services: Services, request: Request) -> Response:
    """Get the signed-in person. Requests that change something must send `csrf_token` as `x-hearth-csrf`."""
    found = await services.browser_sessions.find(request.method, request.headers.raw)
    await services.browser_sessions.principal_of(found)  # refuses sessions that were ended for the user
    person = await _person(services, found.owner)
    return _private(respond({**person, "csrf_token": found.csrf_token, "ends_at": format_time(found.ends_at)}))


async def end(services: Services, request: Request) -> Response:
    """Sign out. The session ends at all gateways. `provider_sign_out` is the URL at which an operator can sign out of
    the OpenID provider, or null."""
    owner, cookie = await services.browser_sessions.close(request.method, request.headers.raw)
    async with services.database.transaction() as connection:
        subject_id = owner.actor.removeprefix("operator:")
        await ChangeContext(owner.actor, services.clock).record(
            connection, "operator.sign_out", "", subject_id, owner.role or ""
        )
    is_of_provider = services.operators is not None and not owner.user_id
    url = await _provider(services).end_session_url() if is_of_provider else ""
    return _private(respond({"provider_sign_out": url or None}), cookie)


async def _person(services: Services, owner: SessionOwner) -> dict[str, Any]:
    """Return the person of a session as the API shows it."""
    if not owner.user_id:
        named = {"name": owner.name, "email": owner.email, "kind": "operator", "user_id": None}
        return {**named, "platform_role": owner.role, "memberships": []}
    user = await operators.find(services.database, owner.user_id)
    if user is None:
        raise Refusal(Reason.CREDENTIAL_REFUSED)
    roles = await users.roles_of(services.database, user.user_id)
    memberships = [
        {"account_id": account.account_id, "account_name": account.name, "role": roles[account.account_id]}
        for account in await accounts.list_all(services.database, list(roles))
    ]
    named = {"name": user.name, "email": user.email, "kind": "user", "user_id": user.user_id}
    return {**named, "platform_role": user.platform_role, "memberships": memberships}


def _provider(services: Services) -> Operators:
    if services.operators is None:
        raise Refusal(Reason.NO_ROUTE)
    return services.operators


def _private(response: Response, *cookies: str) -> Response:
    """Return the response with cookies, and with headers that keep it out of caches."""
    response.headers.update(_PRIVATE)
    response.raw_headers.extend((b"set-cookie", cookie.encode()) for cookie in cookies)
    return response
