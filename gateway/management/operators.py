"""Operators: sign-in with an OpenID provider.

An operator manages all accounts within the scopes of a role, but cannot run models or own API tokens. A user without a
role in the configured claim cannot sign in. `oidc.py` is the provider; `browser_sessions.py` has the sessions.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from gateway.errors import Reason, Refusal
from gateway.jobs.sealed_content import Sealer
from gateway.management.browser_sessions import BrowserSessions
from gateway.management.oidc import AuthorizationRequest, Provider, ProviderUnavailable, SignInFailed
from gateway.management.operator_settings import SignInSettings, operator_roles_in
from gateway.management.session_cookies import SIGN_IN, Headers, read_cookie, set_cookie
from storage.database import Database
from telemetry.clock import Clock
from tenants.audit import audit_log as audit
from tenants.credentials.roles import Role
from tenants.credentials.web_sessions import SessionOwner

log = logging.getLogger(__name__)

SIGN_IN_TIMEOUT_S = 600
_MAX_SIGN_IN_BYTES = 1024
_NOT_IN_NAMES = re.compile(r"[^\w .@+-]")


class Operators:
    """Signs in operators of the OpenID provider."""

    def __init__(
        self,
        settings: SignInSettings,
        cache_secret: bytes,
        sessions: BrowserSessions,
        database: Database,
        clock: Clock,
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
        self._sealer = Sealer(cache_secret, "sign-in")
        self._sessions, self._database, self._clock = sessions, database, clock

    async def begin(self, headers: Headers) -> tuple[str, str]:
        """Return the provider's URL to redirect to, and the `set-cookie` header to send with it. Raises Refusal."""
        authorization = AuthorizationRequest.create()
        content = msgspec.json.encode({**asdict(authorization), "started_s": self._clock.now().timestamp()})
        value = base64.urlsafe_b64encode(self._sealer.seal("", content)).rstrip(b"=").decode()
        cookie = set_cookie(headers, SIGN_IN, value, "Lax", SIGN_IN_TIMEOUT_S)
        with _provider_errors():
            return await self._provider.authorization_url(authorization), cookie

    async def finish(self, headers: Headers, query: Mapping[str, str]) -> tuple[str, str]:
        """Open a session for the user that the provider authenticated, and return the `set-cookie` headers.

        `query` is that of the provider's redirect. Raises Refusal and StoreUnavailable.
        """
        authorization = self._open_cookie(read_cookie(headers, SIGN_IN))
        if authorization is None:
            raise Refusal(Reason.SIGN_IN_FAILED, "it was not started in this browser, or more than 10 minutes ago")
        with _provider_errors():
            claims = await self._provider.claims(authorization, query)
        operator_id = operator_id_of(self._issuer, claims["sub"])
        role = role_of(claims, self._claim, self._roles)
        if role is None:
            log.warning("sign-in rejected: no role", extra={"operator": operator_id})
            raise Refusal(Reason.SIGN_IN_FORBIDDEN)
        now, ids = self._clock.now(), {"account_id": "", "subject_id": operator_id.partition(":")[2]}
        async with self._database.transaction() as connection:
            await audit.append(connection, at=now, actor=operator_id, action="operator.sign_in", detail=role, **ids)
        owner = SessionOwner(operator_id, _text_in(claims, _NAMES), _text_in(claims, ("email",)), role)
        return await self._sessions.open(headers, owner), set_cookie(headers, SIGN_IN, "", "Lax", 0)

    async def end_session_url(self) -> str:
        """Return the URL at which an operator can sign out of the provider, or ""."""
        try:
            return await self._provider.end_session_url()
        except ProviderUnavailable:
            return ""

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


_NAMES = ("name", "preferred_username", "email", "sub")


def _text_in(claims: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of these claims that is a text, without markup and at most 100 characters."""
    texts = (claims.get(name) for name in names)
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
