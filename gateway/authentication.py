"""Authentication and authorization: headers to Principal, and the Principal's permission in the account of the path.

A caller without a valid credential learns nothing about accounts or models. If the database is unavailable and the
token is not cached, the response is 503; access is never granted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from gateway.client_address import ClientAddress
from gateway.errors import Reason, Refusal
from tenants.credentials.principal import Principal, Refused
from tenants.credentials.token_verifier import TokenVerifier

RUN_MODELS_SCOPE = "ai:run"

Headers = Sequence[tuple[bytes, bytes]]

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
    found: bytes | None = None
    key: bytes | None = None
    api_key: bytes | None = None
    email: bytes | None = None
    has_service_key = False
    for name, value in headers:
        if name == b"authorization":
            if found is not None:
                raise Refusal(Reason.CREDENTIAL_REPEATED)
            found = value
        elif name == b"x-auth-key":
            key = value
        elif name == b"x-auth-email":
            email = value
        elif name == b"x-auth-user-service-key":
            has_service_key = True
        elif name == b"x-api-key":
            if api_key is not None:
                raise Refusal(Reason.CREDENTIAL_REPEATED)
            api_key = value
    if found is None and api_key is not None:
        found = b"Bearer " + api_key
    if found is None:
        if key and email and key.isascii() and email.isascii():
            return Credential(key.decode("ascii"), email.decode("ascii"))
        raise Refusal(Reason.CREDENTIAL_REFUSED if has_service_key else Reason.CREDENTIAL_MALFORMED)
    scheme, _, secret = found.partition(b" ")
    if scheme.lower() != b"bearer" or not secret.strip().isascii():
        raise Refusal(Reason.CREDENTIAL_MALFORMED)
    return Credential(secret.strip().decode("ascii"))


def has_credential(headers: Headers) -> bool:
    """Return True if a header that may carry a credential is present."""
    return any(name in _CREDENTIAL_HEADERS for name, _ in headers)


async def verify(verifier: TokenVerifier, headers: Headers, address: ClientAddress) -> Principal | Refused:
    """Verify the credential and the client address that it may be bound to.

    Raises Refusal for a missing or malformed credential and for an address that is not allowed; StoreUnavailable.
    """
    credential = credential_in(headers)
    if credential.email:
        verdict = await verifier.verify_global_key(credential.email, credential.secret)
    else:
        verdict = await verifier.verify(credential.secret)
    if isinstance(verdict, Refused) and _is_malformed(verdict, credential.secret):
        raise Refusal(Reason.CREDENTIAL_MALFORMED)
    if verdict.condition is not None and not verdict.condition.admits(address.of(headers)):
        raise Refusal(Reason.ADDRESS_REFUSED)
    return verdict


async def authenticate(verifier: TokenVerifier, headers: Headers, address: ClientAddress) -> Principal:
    """Return the caller. Raises what `verify` raises, and Refusal for an invalid credential."""
    verdict = await verify(verifier, headers, address)
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
