"""Sessions of browsers: open and close them, protect them against requests of other sites, and authenticate requests.

A session belongs to a user or to an operator of the OpenID provider. `sign_in.py` has the routes, and
`tenants/credentials/web_sessions.py` stores the sessions.
"""

from __future__ import annotations

import hmac

from gateway.errors import Reason, Refusal
from gateway.management.session_cookies import SESSION, Headers, own_origins, read_cookie, set_cookie
from tenants.credentials.principal import Principal, Refused
from tenants.credentials.roles import operator_scopes
from tenants.credentials.token_verifier import TokenVerifier
from tenants.credentials.web_sessions import SessionOwner, WebSession, WebSessions

CSRF_HEADER = b"x-hearth-csrf"
_SAFE_METHODS = frozenset({"GET", "HEAD"})


class BrowserSessions:
    """`public_origin` is the origin of the platform's pages behind a proxy that changes the Host header, or ""."""

    def __init__(self, sessions: WebSessions, verifier: TokenVerifier, public_origin: str = "") -> None:
        self._sessions, self._verifier = sessions, verifier
        self._public_origins = frozenset({public_origin.encode()} - {b""})

    async def open(self, headers: Headers, owner: SessionOwner) -> str:
        """Create a session and return its `set-cookie` header. Raises StoreUnavailable."""
        return set_cookie(headers, SESSION, await self._sessions.open(owner), "Strict")

    async def close(self, method: str, headers: Headers) -> tuple[SessionOwner, str]:
        """End the session of a request. Return its owner and the `set-cookie` header. Raises Refusal and
        StoreUnavailable."""
        session = await self.find(method, headers)
        await self._sessions.close(read_cookie(headers, SESSION))
        return session.owner, set_cookie(headers, SESSION, "", "Strict", 0)

    async def find(self, method: str, headers: Headers) -> WebSession:
        """Return the session of the cookie in a request.

        Requests that change something must come from our own origin and carry the session's CSRF token; other requests
        must not come from another site. Raises Refusal and StoreUnavailable.
        """
        cookie = read_cookie(headers, SESSION)
        session = await self._sessions.find(cookie) if cookie else None
        if session is None:
            raise Refusal(Reason.CREDENTIAL_REFUSED)
        if method in _SAFE_METHODS:
            found = dict(headers)
            site, origin = found.get(b"sec-fetch-site"), found.get(b"origin")
            is_same_site = site in (None, b"same-origin", b"none")
            if not is_same_site or (origin is not None and origin not in self._own_origins(headers)):
                raise Refusal(Reason.CROSS_SITE)
        else:
            self.check_is_own_page(headers)
            token = next((value for name, value in headers if name == CSRF_HEADER), b"")
            if not hmac.compare_digest(token, session.csrf_token.encode()):
                raise Refusal(Reason.CROSS_SITE)
        return session

    def check_is_own_page(self, headers: Headers) -> None:
        """Raise Refusal unless a page of this platform sent the request."""
        found = dict(headers)
        site, origin = found.get(b"sec-fetch-site"), found.get(b"origin")
        is_own_origin = origin in self._own_origins(headers)
        is_own_page = is_own_origin if site is None else site == b"same-origin" and (origin is None or is_own_origin)
        if not is_own_page:
            raise Refusal(Reason.CROSS_SITE)

    async def authenticate(self, method: str, headers: Headers) -> Principal:
        """Return the signed-in person as a principal. Raises Refusal and StoreUnavailable."""
        return await self.principal_of(await self.find(method, headers))

    async def principal_of(self, session: WebSession) -> Principal:
        """Return the principal of a session. Raises Refusal if the user's sessions have been ended, and
        StoreUnavailable."""
        owner = session.owner
        if not owner.user_id:
            scopes = frozenset() if owner.role is None else operator_scopes(owner.role)
            return Principal("", owner.operator_id, scopes, kind="account", is_operator=True)
        verdict = await self._verifier.verify_session_user(owner.user_id, owner.generation)
        if isinstance(verdict, Refused):
            raise Refusal(Reason.CREDENTIAL_REFUSED)
        return verdict

    @staticmethod
    def has_cookie(headers: Headers) -> bool:
        """Return True if a request has exactly one session cookie."""
        return read_cookie(headers, SESSION) != ""

    def _own_origins(self, headers: Headers) -> frozenset[bytes]:
        return own_origins(headers) | self._public_origins
