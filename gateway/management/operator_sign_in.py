"""Operators: people whom an OpenID provider vouches for, and what their role lets them do on every account.

They manage; they run no model and own no tokens. Who has no role by the configured claim is not let in. Knows headers
and cookies; the provider is `oidc.py`, sessions are `tenants/credentials/web_sessions.py`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import Reason, Refusal
from gateway.jobs.sealed_content import Sealer
from gateway.management.oidc import Attempt, Provider, ProviderAway, SignInFailed
from gateway.management.operator_settings import SignInSettings, operator_roles_in, origin_of
from storage.database import Database
from storage.ephemeral import Ephemeral
from telemetry.clock import Clock
from tenants.audit import audit_log as audit
from tenants.credentials.principal import Principal
from tenants.credentials.roles import Role, operator_scopes
from tenants.credentials.web_sessions import WebSession, WebSessions

log = logging.getLogger(__name__)

SESSION_COOKIE, ATTEMPT_COOKIE = "__Host-hearth-session", "__Host-hearth-sign-in"
CSRF_HEADER = b"x-hearth-csrf"
ATTEMPT_S = 600
_MAX_ATTEMPT_BYTES = 1024
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_UNFIT_FOR_NAMES = re.compile(r"[^\w .@+-]")

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class SignedIn:
    cookie: str
    name: str
    role: Role


class Operators:
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
        """Where the browser is sent, and what it keeps until it comes back. Raises Refusal."""
        attempt = Attempt.fresh()
        content = msgspec.json.encode({**asdict(attempt), "began_s": self._clock.now().timestamp()})
        kept = base64.urlsafe_b64encode(self._sealer.seal("", content)).rstrip(b"=").decode()
        try:
            return await self._provider.authorization_url(attempt), kept
        except ProviderAway as error:
            raise _away(error) from None

    async def finish(self, kept: str, query: Mapping[str, str]) -> SignedIn:
        """A session for whoever the provider says came back. Raises Refusal, StoreUnavailable."""
        attempt = self._attempt_in(kept)
        if attempt is None:
            raise Refusal(Reason.SIGN_IN_FAILED, "it was not begun in this browser, or too long ago")
        try:
            claims = await self._provider.claims(attempt, query)
        except SignInFailed as error:
            log.warning("a sign-in failed", extra={"why": str(error)})
            raise Refusal(Reason.SIGN_IN_FAILED, str(error)) from None
        except ProviderAway as error:
            raise _away(error) from None
        operator_id = operator_id_of(self._issuer, claims["sub"])
        role = role_of(claims, self._claim, self._roles)
        if role is None:
            log.warning("a sign-in without a role was refused", extra={"operator": operator_id})
            raise Refusal(Reason.SIGN_IN_FORBIDDEN)
        name = _name_in(claims)
        async with self._database.transaction() as connection:
            await self._note(connection, operator_id, "operator.sign_in", role)
        return SignedIn(await self._sessions.open(operator_id, name, role), name, role)

    async def end(self, session: WebSession, cookie: str) -> str:
        """Close the session; where the provider itself can be signed out of, or "". Raises StoreUnavailable."""
        await self._sessions.close(cookie)
        async with self._database.transaction() as connection:
            await self._note(connection, session.operator_id, "operator.sign_out", session.role)
        try:
            return await self._provider.end_session_url()
        except ProviderAway:
            return ""

    async def session_of(self, method: str, headers: Headers, cookie: str) -> WebSession:
        """The session, if this request may use it: what changes something must come from a page of ours that knows the
        session's token. Raises Refusal, StoreUnavailable."""
        session = await self._sessions.find(cookie)
        if session is None:
            raise Refusal(Reason.CREDENTIAL_REFUSED)
        found = dict(headers)
        site, origin = found.get(b"sec-fetch-site"), found.get(b"origin")
        if method in _SAFE_METHODS:
            is_ours = site in (None, b"same-origin", b"none") and origin in (None, self._origin)
        else:
            token = found.get(CSRF_HEADER, b"")
            is_here = (
                origin == self._origin if site is None else site == b"same-origin" and origin in (None, self._origin)
            )
            is_ours = is_here and hmac.compare_digest(token, session.csrf_token.encode())
        if not is_ours:
            raise Refusal(Reason.CROSS_SITE)
        return session

    async def prove(self, method: str, headers: Headers, cookie: str) -> Principal:
        """Who is signed in, as one who may manage every account. Raises what `session_of` raises."""
        session = await self.session_of(method, headers, cookie)
        scopes = operator_scopes(session.role)
        return Principal("", session.operator_id, scopes, kind="account", is_operator=True)

    @staticmethod
    def session_cookie_in(headers: Headers) -> str:
        return cookie_in(headers, SESSION_COOKIE)

    async def close(self) -> None:
        await self._provider.close()

    def _attempt_in(self, kept: str) -> Attempt | None:
        try:
            sealed = base64.urlsafe_b64decode(kept + "=" * (-len(kept) % 4))
            content = msgspec.json.decode(self._sealer.open("", sealed, _MAX_ATTEMPT_BYTES), type=dict[str, Any])
        except (ValueError, msgspec.DecodeError):
            return None
        age_s = self._clock.now().timestamp() - content.pop("began_s")
        return Attempt(**content) if -ATTEMPT_S < age_s < ATTEMPT_S else None

    async def _note(self, connection: AsyncConnection, operator_id: str, action: str, role: Role) -> None:
        now, ids = self._clock.now(), {"account_id": "", "subject_id": operator_id.partition(":")[2]}
        await audit.append(connection, at=now, who=operator_id, action=action, detail=role, **ids)


def cookie_in(headers: Headers, name: str) -> str:
    """A cookie's value; "" where it is not there, or there twice."""
    pairs = [pair.strip() for key, value in headers if key == b"cookie" for pair in value.split(b";")]
    found = [pair.partition(b"=")[2] for pair in pairs if pair.partition(b"=")[0] == name.encode()]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def operator_id_of(issuer: str, subject: str) -> str:
    """How the audit calls a person: the same at every sign-in, and no name."""
    return "operator:" + hashlib.sha256(f"{issuer}\n{subject}".encode()).hexdigest()[:32]


def role_of(claims: Mapping[str, Any], claim: str, roles: Mapping[str, Role]) -> Role | None:
    """The strongest role that a value of the claim has. A claim inside another is named with a dot between them; an
    email counts only when the provider has verified it."""
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
    """What to call the person on pages: never markup, never long."""
    texts = (claims.get(name) for name in ("name", "preferred_username", "email", "sub"))
    text = next((text for text in texts if isinstance(text, str) and text), "")
    return _UNFIT_FOR_NAMES.sub("", text)[:100]


def _away(error: ProviderAway) -> Refusal:
    log.error("the OpenID provider cannot be asked", extra={"why": str(error)})
    return Refusal(Reason.DEPENDENCY_DOWN)
