"""`/admin/…`: operators sign in with an OpenID provider, see their session, and sign out.

Without HEARTH_OIDC_ISSUER these routes do not exist. The session cookie is SameSite=Strict and HttpOnly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management.endpoint import format_time, respond
from gateway.services import Services

if TYPE_CHECKING:
    from gateway.management.operators import Operators

_PRIVATE = {"cache-control": "no-store", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}
# A page instead of a redirect: a redirect would still count as started by the provider's site, so the browser would not
# send the SameSite=Strict session cookie.
_SIGNED_IN = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/admin/session">
<title>Signed in</title></head><body><p>Signed in. <a href="/admin/session">Continue</a></p></body></html>
"""
_PAGE_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


async def begin(services: Services, _request: Request) -> Response:
    """Redirect to the provider."""
    url, cookie = await _operators(services).begin()
    return _private(Response(status_code=302, headers={"location": url}), cookie)


async def finish(services: Services, request: Request) -> Response:
    """Complete the sign-in after the provider's redirect and start a new session."""
    operators, query = _operators(services), request.query_params
    if len(query) != len(query.multi_items()):
        raise Refusal(Reason.SIGN_IN_FAILED, "a query parameter is repeated")
    cookies = await operators.finish(request.headers.raw, query)
    headers = {"content-security-policy": _PAGE_POLICY}
    return _private(Response(_SIGNED_IN, media_type="text/html", headers=headers), *cookies)


async def session(services: Services, request: Request) -> Response:
    """Get the signed-in operator. Requests that change something must send `csrf_token` as `x-hearth-csrf`."""
    found = await _operators(services).session_of(request.method, request.headers.raw)
    shown = {"name": found.name, "role": found.role, "csrf_token": found.csrf_token}
    return _private(respond({"id": found.operator_id, **shown, "expires_on": format_time(found.ends_at)}))


async def end(services: Services, request: Request) -> Response:
    """Sign out. The session ends at all gateways."""
    url, cookie = await _operators(services).end(request.method, request.headers.raw)
    return _private(respond({"provider_sign_out": url or None}), cookie)


def _operators(services: Services) -> Operators:
    if services.operators is None:
        raise Refusal(Reason.NO_ROUTE)
    return services.operators


def _private(response: Response, *cookies: str) -> Response:
    """Return the response with cookies, and with headers that keep it out of caches."""
    response.headers.update(_PRIVATE)
    response.raw_headers.extend((b"set-cookie", cookie.encode()) for cookie in cookies)
    return response
