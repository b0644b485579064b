"""Authorization header -> Principal, and whether that Principal may do this to the account in the path.

A caller without a valid credential learns nothing about accounts or models. When it cannot be decided (the database
is away and the token not remembered) the answer is 503, never a pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.errors import Reason, Refusal
from tenants.api_tokens import TokenVerifier
from tenants.principal import Principal, Refused

RUN_MODELS_SCOPE = "ai:run"

# The form of a signed token: a credential, though of a kind that opens nothing here.
_JWT = re.compile(r"[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]*")


def secret_in(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The API token's text. Raises Refusal when there is none, or more than one, or it is no bearer credential.

    Global keys (`X-Auth-Email` with `X-Auth-Key`) and service keys are understood, and refused: none exist here.
    Tokens in the query or a cookie are not looked at.
    """
    found: bytes | None = None
    has_key = has_email = has_service_key = False
    for name, value in headers:
        if name == b"authorization":
            if found is not None:
                raise Refusal(Reason.CREDENTIAL_REPEATED)
            found = value
        elif name == b"x-auth-key":
            has_key = True
        elif name == b"x-auth-email":
            has_email = True
        elif name == b"x-auth-user-service-key":
            has_service_key = True
    if found is None:
        is_complete = has_service_key or (has_key and has_email)
        raise Refusal(Reason.CREDENTIAL_REFUSED if is_complete else Reason.CREDENTIAL_MALFORMED)
    scheme, _, secret = found.partition(b" ")
    if scheme.lower() != b"bearer" or not secret.strip().isascii():
        raise Refusal(Reason.CREDENTIAL_MALFORMED)
    return secret.strip().decode("ascii")


async def prove(verifier: TokenVerifier, headers: Sequence[tuple[bytes, bytes]]) -> Principal:
    """Who is calling. Raises Refusal, and StoreUnavailable when that cannot be decided."""
    secret = secret_in(headers)
    verdict = await verifier.verify(secret)
    if isinstance(verdict, Refused):
        raise Refusal(Reason.CREDENTIAL_MALFORMED if is_malformed(verdict, secret) else Reason.CREDENTIAL_REFUSED)
    return verdict


def is_malformed(refused: Refused, secret: str) -> bool:
    """Whether `secret` has not even the form of a credential; a signed token has one, though it opens nothing here."""
    return refused.reason == "malformed" and not _JWT.fullmatch(secret)


def permit(principal: Principal, account_id: str, scope: str) -> None:
    """Whether the principal may use `scope` on this account; a foreign and an unknown account look the same.
    Raises Refusal."""
    if principal.account_id != account_id:
        raise Refusal(Reason.NOT_PERMITTED)
    if principal.is_account_blocked:
        raise Refusal(Reason.ACCOUNT_BLOCKED)
    if scope not in principal.scopes:
        raise Refusal(Reason.NOT_PERMITTED)
