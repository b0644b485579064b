"""Authentication and authorization: headers to Principal, and the Principal's permission in the account of the path.

A caller without a valid credential learns nothing about accounts or models. If the database is unavailable and the
token is not cached, the response is 503; access is never granted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from gateway.errors import Reason, Refusal
from gateway.services import Services
from tenants.credentials.conditions import AddressCondition
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


def has_credential(headers: Headers) -> bool:
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
    if condition is not None and not condition.admits(_client_address(headers, peer, services.trusted_proxies)):
        raise Refusal(Reason.ADDRESS_REFUSED)
    return verdict


def _client_address(headers: Headers, peer: Peer | None, proxies: AddressCondition | None) -> str | None:
    """Return the last address in `x-forwarded-for` that is no trusted proxy if the peer is a trusted proxy, else the
    peer's address; None on a Unix socket."""
    address = peer[0] if peer else None
    if proxies is None or not proxies.admits(address):
        return address
    forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for")
    hops = [hop.strip() for hop in forwarded.decode("ascii", "replace").split(",") if hop.strip()]
    return next((hop for hop in reversed(hops) if not proxies.admits(hop)), hops[0] if hops else address)


async def authenticate(services: Services, headers: Headers, peer: Peer | None) -> Principal:
    """Return the caller. Raises what `verify` raises, and Refusal for an invalid credential."""
    verdict = await verify(services, headers, peer)
    if isinstance(verdict, Refused):
        raise Refusal(Reason.CREDENTIAL_REFUSED)
    return verdict


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


def require_model(principal: Principal, *names: str) -> None:
    """Raise Refusal if the principal may not run the model with these names."""
    if principal.models is not None and principal.models.isdisjoint(names):
        raise Refusal(Reason.NOT_PERMITTED)


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
