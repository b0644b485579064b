"""Operators: sign-in with an OpenID provider, sessions in cookies, and protection against cross-site requests.

An operator manages all accounts within the scopes of a role, but cannot run models or own API tokens. A user without a
role in the configured claim cannot sign in. `oidc.py` is the provider; `tenants/credentials/web_sessions.py` stores the
sessions.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import Reason, Refusal
from gateway.jobs.sealed_content import Sealer
from gateway.management.oidc import AuthorizationRequest, Provider, ProviderUnavailable, SignInFailed
from gateway.management.operator_settings import SignInSettings, operator_roles_in, origin_of
from storage.database import Database
from storage.ephemeral import Ephemeral
from telemetry.clock import Clock
from tenants.audit import audit_log as audit
from tenants.credentials.principal import Principal
from tenants.credentials.roles import Role, operator_scopes
from tenants.credentials.web_sessions import WebSession, WebSessions

log = logging.getLogger(__name__)

CSRF_HEADER = b"x-hearth-csrf"
SIGN_IN_TIMEOUT_S = 600
_SESSION_COOKIE, _SIGN_IN_COOKIE = "__Host-hearth-session", "__Host-hearth-sign-in"
_COOKIE_ATTRIBUTES = "Path=/; Secure; HttpOnly"
_MAX_SIGN_IN_BYTES = 1024
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_NOT_IN_NAMES = re.compile(r"[^\w .@+-]")

Headers = Sequence[tuple[bytes, bytes]]


class Operators:
    """Signs operators in and out and authenticates their requests."""

    def __init__(
        self, settings: SignInSettings, cache_secret: bytes, database: Database, ephemeral: Ephemeral, clock: Clock
    ) -> None:
        self._provider = Provider(
            issuer=settings.issuer,
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            redirect_url=settings.redirect_url,
            scopes=settings.scopes,
            clock=clock,
        )
        self._issuer, self._claim = settings.issuer, settings.roles_claim
        self._roles = operator_roles_in(settings.roles)
        self._origin = origin_of(settings.redirect_url).encode()
        self._sealer = Sealer(cache_secret, "sign-in")
        self._sessions = WebSessions(ephemeral, cache_secret, clock)
        self._database, self._clock = database, clock

    async def begin(self) -> tuple[str, str]:
        """Return the provider's URL to redirect to, and the `set-cookie` header to send with it. Raises Refusal."""
        authorization = AuthorizationRequest.create()
        content = msgspec.json.encode({**asdict(authorization), "started_s": self._clock.now().timestamp()})
        value = base64.urlsafe_b64encode(self._sealer.seal("", content)).rstrip(b"=").decode()
        cookie = f"{_SIGN_IN_COOKIE}={value}; {_COOKIE_ATTRIBUTES}; SameSite=Lax; Max-Age={SIGN_IN_TIMEOUT_S}"
        with _provider_errors():
            return await self._provider.authorization_url(authorization), cookie

    async def finish(self, headers: Headers, query: Mapping[str, str]) -> tuple[str, str]:
        """Open a session for the user that the provider authenticated, and return the `set-cookie` headers.

        `query` is that of the provider's redirect. Raises Refusal and StoreUnavailable.
        """
        authorization = self._open_cookie(_cookie_in(headers, _SIGN_IN_COOKIE))
        if authorization is None:
            raise Refusal(Reason.SIGN_IN_FAILED, "it was not started in this browser, or more than 10 minutes ago")
        with _provider_errors():
            claims = await self._provider.claims(authorization, query)
        operator_id = operator_id_of(self._issuer, claims["sub"])
        role = role_of(claims, self._claim, self._roles)
        if role is None:
            log.warning("sign-in rejected: no role", extra={"operator": operator_id})
            raise Refusal(Reason.SIGN_IN_FORBIDDEN)
        name = _name_in(claims)
        async with self._database.transaction() as connection:
            await self._write_audit(connection, operator_id, "operator.sign_in", role)
        value = await self._sessions.open(operator_id, name, role)
        return (
            f"{_SESSION_COOKIE}={value}; {_COOKIE_ATTRIBUTES}; SameSite=Strict",
            f"{_SIGN_IN_COOKIE}=; {_COOKIE_ATTRIBUTES}; SameSite=Lax; Max-Age=0",
        )

    async def end(self, method: str, headers: Headers) -> tuple[str, str]:
        """Close the session. Return the URL at which the user can sign out of the provider, or "", and the
        `set-cookie` header. Raises Refusal and StoreUnavailable."""
        session = await self.session_of(method, headers)
        await self._sessions.close(_cookie_in(headers, _SESSION_COOKIE))
        cookie = f"{_SESSION_COOKIE}=; {_COOKIE_ATTRIBUTES}; SameSite=Strict; Max-Age=0"
        async with self._database.transaction() as connection:
            await self._write_audit(connection, session.operator_id, "operator.sign_out", session.role)
        try:
            return await self._provider.end_session_url(), cookie
        except ProviderUnavailable:
            return "", cookie

    async def session_of(self, method: str, headers: Headers) -> WebSession:
        """Return the session of the cookie in a request.

        Requests that change something must come from our own origin and carry the session's CSRF token; other requests
        must not come from another site. Raises Refusal and StoreUnavailable.
        """
        if not self.has_session_cookie(headers):
            raise Refusal(Reason.CREDENTIAL_MALFORMED)
        session = await self._sessions.find(_cookie_in(headers, _SESSION_COOKIE))
        if session is None:
            raise Refusal(Reason.CREDENTIAL_REFUSED)
        found = dict(headers)
        site, origin = found.get(b"sec-fetch-site"), found.get(b"origin")
        if method in _SAFE_METHODS:
            is_same_site = site in (None, b"same-origin", b"none") and origin in (None, self._origin)
        else:
            token = found.get(CSRF_HEADER, b"")
            is_same_origin = (
                origin == self._origin if site is None else site == b"same-origin" and origin in (None, self._origin)
            )
            is_same_site = is_same_origin and hmac.compare_digest(token, session.csrf_token.encode())
        if not is_same_site:
            raise Refusal(Reason.CROSS_SITE)
        return session

    async def authenticate(self, method: str, headers: Headers) -> Principal:
        """Return the signed-in operator as a principal for all accounts. Raises Refusal and StoreUnavailable."""
        session = await self.session_of(method, headers)
        scopes = operator_scopes(session.role)
        return Principal("", session.operator_id, scopes, kind="account", is_operator=True)

    @staticmethod
    def has_session_cookie(headers: Headers) -> bool:
        """Return True if a request has exactly one session cookie."""
        return _cookie_in(headers, _SESSION_COOKIE) != ""

    async def close(self) -> None:
        await self._provider.close()

    def _open_cookie(self, cookie: str) -> AuthorizationRequest | None:
        try:
            sealed = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
            content = msgspec.json.decode(self._sealer.open("", sealed, _MAX_SIGN_IN_BYTES), type=dict[str, Any])
        except (ValueError, msgspec.DecodeError):
            return None
        age_s = self._clock.now().timestamp() - content.pop("started_s")
        return AuthorizationRequest(**content) if -SIGN_IN_TIMEOUT_S < age_s < SIGN_IN_TIMEOUT_S else None

    async def _write_audit(self, connection: AsyncConnection, operator_id: str, action: str, role: Role) -> None:
        now, ids = self._clock.now(), {"account_id": "", "subject_id": operator_id.partition(":")[2]}
        await audit.append(connection, at=now, actor=operator_id, action=action, detail=role, **ids)


def _cookie_in(headers: Headers, name: str) -> str:
    """Return the value of a cookie; "" if it is missing or repeated."""
    pairs = [pair.strip() for key, value in headers if key == b"cookie" for pair in value.split(b";")]
    found = [pair.partition(b"=")[2] for pair in pairs if pair.partition(b"=")[0] == name.encode()]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def operator_id_of(issuer: str, subject: str) -> str:
    """Return a stable pseudonym of a person for the audit log."""
    return "operator:" + hashlib.sha256(f"{issuer}\n{subject}".encode()).hexdigest()[:32]


def role_of(claims: Mapping[str, Any], claim: str, roles: Mapping[str, Role]) -> Role | None:
    """Return the strongest role of the claim's values, or None.

    `claim` may name a nested claim with dots. An email counts only if the provider has verified it.
    """
    value: Any = claims.get(claim)
    if value is None:
        value = claims
        for part in claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if claim == "email" and claims.get("email_verified") is not True:
        return None
    values = value if isinstance(value, list) else [value]
    found = {roles[text] for text in values if isinstance(text, str) and text in roles}
    return "administrator" if "administrator" in found else next(iter(found), None)


def _name_in(claims: Mapping[str, Any]) -> str:
    """Return a display name: without markup and at most 100 characters."""
    texts = (claims.get(name) for name in ("name", "preferred_username", "email", "sub"))
    text = next((text for text in texts if isinstance(text, str) and text), "")
    return _NOT_IN_NAMES.sub("", text)[:100]


@contextlib.contextmanager
def _provider_errors() -> Iterator[None]:
    """Raise the errors of the OpenID provider as Refusals."""
    try:
        yield
    except SignInFailed as error:
        log.warning("sign-in failed", extra={"reason": str(error)})
        raise Refusal(Reason.SIGN_IN_FAILED, str(error)) from None
    except ProviderUnavailable as error:
        log.error("OpenID provider unavailable", extra={"reason": str(error)})
        raise Refusal(Reason.DEPENDENCY_DOWN) from None
