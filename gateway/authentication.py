"""Authentication and authorization: headers to Principal, and the Principal's permission in the account of the path.

A caller without a valid credential learns nothing about accounts or models. If the database is unavailable and the
token is not cached, the response is 503; access is never granted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from gateway.errors import Reason, Refusal
from gateway.http.client_address import client_address as forwarded_address
from gateway.services import Services
from telemetry.fair_share import current_account
from tenants.credentials.principal import Principal, Refused

RUN_MODELS_SCOPE = "ai:run"

Headers = Sequence[tuple[bytes, bytes]]
Peer = tuple[str, int]

_CREDENTIAL_HEADERS = frozenset(
    {b"authorization", b"x-api-key", b"x-auth-email", b"x-auth-key", b"x-auth-user-service-key"}
)

# A signed token has the form of a credential, but is never valid here.
_JWT = re.compile(r"[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]*")


class Credential(Struct, frozen=True):
    """The credential in the headers: an API token's secret or, with `email`, a user's global API key."""

    secret: str
    email: str = ""


def credential_in(headers: Headers) -> Credential:
    """Return the credential. Raises Refusal if there is none or more than one, or if it is malformed.

    Without an Authorization header, `x-api-key` is accepted, as Anthropic's clients send it. Cloudflare service keys
    are always refused. Tokens in the query or in cookies are ignored; `http/binding.py` has already moved a token in
    the URL of miniflare's proxy to a header.
    """
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _CREDENTIAL_HEADERS:
            if name in found and name in (b"authorization", b"x-api-key"):
                raise Refusal(Reason.CREDENTIAL_REPEATED)
            found[name] = value
    authorization = found.get(b"authorization")
    if authorization is None and b"x-api-key" in found:
        authorization = b"Bearer " + found[b"x-api-key"]
    if authorization is None:
        email, key = found.get(b"x-auth-email", b""), found.get(b"x-auth-key", b"")
        if email and key and email.isascii() and key.isascii():
            return Credential(key.decode("ascii"), email.decode("ascii"))
        is_service_key = b"x-auth-user-service-key" in found
        raise Refusal(Reason.CREDENTIAL_REFUSED if is_service_key else Reason.CREDENTIAL_MALFORMED)
    scheme, _, secret = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or not secret.strip().isascii():
        raise Refusal(Reason.CREDENTIAL_MALFORMED)
    return Credential(secret.strip().decode("ascii"))


def _has_credential(headers: Headers) -> bool:
    """Return True if a header that may carry a credential is present."""
    return any(name in _CREDENTIAL_HEADERS for name, _ in headers)


async def verify(services: Services, headers: Headers, peer: Peer | None) -> Principal | Refused:
    """Verify the credential and the client address that it may be bound to. `peer` is ASGI's `client`.

    Raises Refusal for a missing or malformed credential and for an address that is not allowed; StoreUnavailable.
    """
    credential = credential_in(headers)
    if credential.email:
        verdict = await services.verifier.verify_global_key(credential.email, credential.secret)
    else:
        verdict = await services.verifier.verify(credential.secret)
    if isinstance(verdict, Refused) and _is_malformed(verdict, credential.secret):
        raise Refusal(Reason.CREDENTIAL_MALFORMED)
    condition = verdict.condition
    if condition is not None and not condition.admits(client_address(services, headers, peer)):
        raise Refusal(Reason.ADDRESS_REFUSED)
    return verdict


def client_address(services: Services, headers: Headers, peer: Peer | None) -> str | None:
    """Return the client's address, also behind trusted proxies; None on a Unix socket."""
    return forwarded_address(headers, peer[0] if peer else None, services.trusted_proxies)


async def authenticate(services: Services, method: str, headers: Headers, peer: Peer | None) -> Principal:
    """Return the caller, by the credential in the headers or else by a browser's session.

    Raises what `verify` raises, and Refusal for an invalid credential or a request of another site.
    """
    if not _has_credential(headers) and services.browser_sessions.has_cookie(headers):
        principal = await services.browser_sessions.authenticate(method, headers)
    else:
        verdict = await verify(services, headers, peer)
        if isinstance(verdict, Refused):
            raise Refusal(Reason.CREDENTIAL_REFUSED)
        principal = verdict
    current_account.set(principal.party)
    return principal


def authorize(principal: Principal, account_id: str, scope: str) -> Principal:
    """Return the principal in this account, if it has `scope` there. Raises Refusal, the same for an unknown account as
    for another's."""
    found = principal if principal.account_id == account_id else principal.on(account_id)
    if found is None:
        raise Refusal(Reason.NOT_PERMITTED)
    if found.is_account_blocked:
        raise Refusal(Reason.ACCOUNT_BLOCKED)
    if scope not in found.scopes:
        raise Refusal(Reason.NOT_PERMITTED)
    return found


def has_platform_role(principal: Principal, scope: str = "platform:read") -> bool:
    """Return True if the caller has a platform role with `scope`."""
    return principal.is_operator and scope in principal.scopes


def authorize_platform(principal: Principal, scope: str, account_id: str | None = None) -> Principal:
    """Return the principal, in the account if one is given, if it has a platform role with `scope`. Raises Refusal."""
    if not has_platform_role(principal, scope):
        raise Refusal(Reason.NOT_PERMITTED)
    found = principal if account_id is None else principal.on(account_id)
    if found is None:
        raise Refusal(Reason.NOT_PERMITTED)
    return found


def require_model(principal: Principal, *names: str) -> None:
    """Raise Refusal if the credential or the account may not run the model with these names."""
    if principal.models is not None and principal.models.isdisjoint(names):
        raise Refusal(Reason.NOT_PERMITTED)
    disabled = principal.account.disabled_models
    if disabled and not disabled.isdisjoint(names):
        raise Refusal(Reason.MODEL_DISABLED)


def authorize_user(principal: Principal, scope: str = "") -> Principal:
    """Return the principal, if it is a user with `scope` for the user's own objects. Raises Refusal."""
    if principal.kind != "user":
        raise Refusal(Reason.NOT_PERMITTED)
    if principal.is_account_blocked and not principal.user_id:
        raise Refusal(Reason.ACCOUNT_BLOCKED)
    if scope and scope not in principal.scopes and scope not in principal.user_scopes:
        raise Refusal(Reason.NOT_PERMITTED)
    return principal


def _is_malformed(refused: Refused, secret: str) -> bool:
    """Return True if `secret` does not have the form of a credential. A signed token has."""
    return refused.reason == "malformed" and not _JWT.fullmatch(secret)
