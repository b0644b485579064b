"""`/admin/…`: operators sign in with an OpenID provider, see their session, and sign out.

Without HEARTH_OIDC_ISSUER these routes do not exist. The session cookie is SameSite=Strict and HttpOnly.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management.endpoint import format_time, respond
from gateway.services import Services

_ATTRIBUTES = "Path=/; Secure; HttpOnly"
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
    if services.operators is None:
        raise Refusal(Reason.NO_ROUTE)
    from gateway.management.operators import SIGN_IN_COOKIE, SIGN_IN_TIMEOUT_S

    url, value = await services.operators.begin()
    response = Response(status_code=302, headers={**_PRIVATE, "location": url})
    cookie = f"{SIGN_IN_COOKIE}={value}; {_ATTRIBUTES}; SameSite=Lax; Max-Age={SIGN_IN_TIMEOUT_S}"
    response.raw_headers.append((b"set-cookie", cookie.encode()))
    return response


async def finish(services: Services, request: Request) -> Response:
    """Complete the sign-in after the provider's redirect and start a new session."""
    if services.operators is None:
        raise Refusal(Reason.NO_ROUTE)
    from gateway.management.operators import SESSION_COOKIE, SIGN_IN_COOKIE, cookie_in

    query = request.query_params
    if len(query) != len(query.multi_items()):
        raise Refusal(Reason.SIGN_IN_FAILED, "a query parameter is repeated")
    signed_in = await services.operators.finish(cookie_in(request.headers.raw, SIGN_IN_COOKIE), query)
    headers = {**_PRIVATE, "content-security-policy": _PAGE_POLICY}
    response = Response(_SIGNED_IN, media_type="text/html", headers=headers)
    for cookie in (
        f"{SESSION_COOKIE}={signed_in.cookie}; {_ATTRIBUTES}; SameSite=Strict",
        f"{SIGN_IN_COOKIE}=; {_ATTRIBUTES}; SameSite=Lax; Max-Age=0",
    ):
        response.raw_headers.append((b"set-cookie", cookie.encode()))
    return response


async def session(services: Services, request: Request) -> Response:
    """Get the signed-in operator. Requests that change something must send `csrf_token` as `x-hearth-csrf`."""
    if services.operators is None:
        raise Refusal(Reason.NO_ROUTE)
    found = await services.operators.session_of(request.method, request.headers.raw, _cookie(request))
    shown = {"name": found.name, "role": found.role, "csrf_token": found.csrf_token}
    response = respond({"id": found.operator_id, **shown, "expires_on": format_time(found.ends_at)})
    response.headers.update(_PRIVATE)
    return response


async def end(services: Services, request: Request) -> Response:
    """Sign out. The session ends at all gateways."""
    if services.operators is None:
        raise Refusal(Reason.NO_ROUTE)
    from gateway.management.operators import SESSION_COOKIE

    cookie = _cookie(request)
    found = await services.operators.session_of(request.method, request.headers.raw, cookie)
    url = await services.operators.end(found, cookie)
    response = respond({"provider_sign_out": url or None})
    response.headers.update(_PRIVATE)
    expired = f"{SESSION_COOKIE}=; {_ATTRIBUTES}; SameSite=Strict; Max-Age=0"
    response.raw_headers.append((b"set-cookie", expired.encode()))
    return response


def _cookie(request: Request) -> str:
    """Return the session cookie. Raises Refusal if there is none."""
    from gateway.management.operators import SESSION_COOKIE, cookie_in

    cookie = cookie_in(request.headers.raw, SESSION_COOKIE)
    if not cookie:
        raise Refusal(Reason.CREDENTIAL_MALFORMED)
    return cookie
