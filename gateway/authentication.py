"""Credential in the headers -> Principal, and whether that Principal may do this to the account in the path.

A caller without a valid credential learns nothing about accounts or models. When it cannot be decided (the database
is away and the token not remembered) the answer is 503, never a pass.
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

# The form of a signed token: a credential, though of a kind that opens nothing here.
_JWT = re.compile(r"[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]*")


class Credential(Struct, frozen=True):
    """What the headers hold: an API token's text, or with an `email` a user's global key."""

    secret: str
    email: str = ""


def credential_in(headers: Headers) -> Credential:
    """Raises Refusal when there is none, or more than one, or it is no credential.

    An API token may also come as `x-api-key`, as Anthropic's clients send it, where there is no Authorization. Service
    keys are understood, and refused: none exist here. Tokens in the query or a cookie are not looked at; those in the
    address of miniflare's proxy are a header by now (`http/binding.py`).
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
    """Whether the headers hold something that `credential_in` looks at, good or not."""
    return any(name in _CREDENTIAL_HEADERS for name, _ in headers)


async def judge(verifier: TokenVerifier, headers: Headers, address: ClientAddress) -> Principal | Refused:
    """What the credential comes to, from where it came. Raises Refusal for what is none, or comes from an address that
    its condition does not let in; StoreUnavailable when it cannot be decided."""
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


async def prove(verifier: TokenVerifier, headers: Headers, address: ClientAddress) -> Principal:
    """Who is calling. Raises what `judge` raises, and Refusal for a credential that proves nobody."""
    verdict = await judge(verifier, headers, address)
    if isinstance(verdict, Refused):
        raise Refusal(Reason.CREDENTIAL_REFUSED)
    return verdict


def permit(principal: Principal, account_id: str, scope: str) -> Principal:
    """The principal as one of this account, if it may use `scope` there; a foreign and an unknown account look the
    same. Raises Refusal."""
    found = principal if principal.account_id == account_id else principal.on(account_id)
    if found is None:
        raise Refusal(Reason.NOT_PERMITTED)
    if found.is_account_blocked:
        raise Refusal(Reason.ACCOUNT_BLOCKED)
    if scope not in found.scopes:
        raise Refusal(Reason.NOT_PERMITTED)
    return found


def permit_model(principal: Principal, *names: str) -> None:
    """Whether it may run the model that goes by one of these names. Raises Refusal."""
    if principal.models is not None and principal.models.isdisjoint(names):
        raise Refusal(Reason.NOT_PERMITTED)


def permit_user(principal: Principal, scope: str = "") -> Principal:
    """Whether the principal stands for a user, and may use `scope` on the user's own things. Raises Refusal."""
    if principal.kind != "user":
        raise Refusal(Reason.NOT_PERMITTED)
    if principal.is_account_blocked and not principal.user_id:
        raise Refusal(Reason.ACCOUNT_BLOCKED)
    if scope and scope not in principal.scopes and scope not in principal.user_scopes:
        raise Refusal(Reason.NOT_PERMITTED)
    return principal


def _is_malformed(refused: Refused, secret: str) -> bool:
    """Whether `secret` has not even the form of a credential; a signed token has one, though it opens nothing here."""
    return refused.reason == "malformed" and not _JWT.fullmatch(secret)
