"""Format of API token secrets: create, parse and hash a secret. Does not access the database.

    cfut_ 0123456789 abcdefghijklmnopqrstuvwxyzABCD 1a2B3c
    kind  lookup id  30 random characters           CRC-32 of all preceding text, base 62

The lookup id finds the database row; the remaining 178 random bits authenticate the client. The checksum lets the
gateway reject a mistyped or invented token without a database query.
"""

from __future__ import annotations

import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass

from tenants.credentials.principal import Refused, TokenKind

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PREFIXES: dict[str, TokenKind] = {"cfut_": "user", "cfat_": "account"}
_LOOKUP_LENGTH, _RANDOM_LENGTH, _CHECKSUM_LENGTH = 10, 30, 6
_OURS = re.compile(r"(cfut_|cfat_)([0-9A-Za-z]{10})[0-9A-Za-z]{30}[0-9A-Za-z]{6}")
# Other credentials that a client may send by mistake: a truncated or altered Hearth token, a global key, a login token,
# or an older token without a prefix. None of these is a valid API token.
_CREDENTIAL_LIKE = re.compile(r"(?:cfut|cfat|cfk|cfoat)_[0-9A-Za-z._-]{1,256}|[0-9A-Za-z_-]{40}")


@dataclass(frozen=True, slots=True)
class ParsedSecret:
    """A well-formed secret with a correct checksum. The secret has not been verified yet."""

    kind: TokenKind
    lookup_id: str


def mint(kind: TokenKind, lookup_id: str = "") -> tuple[str, str]:
    """Return a new secret and its lookup id. The lookup id is random if none is given."""
    prefix = next(prefix for prefix, of_kind in _PREFIXES.items() if of_kind == kind)
    lookup_id = lookup_id or _random(_LOOKUP_LENGTH)
    body = prefix + lookup_id + _random(_RANDOM_LENGTH)
    return body + _checksum(body), lookup_id


def mint_global_key() -> str:
    """Return a new global key. A global key has no lookup id, because it is looked up by the user's email address."""
    body = "cfk_" + _random(_LOOKUP_LENGTH + _RANDOM_LENGTH)
    return body + _checksum(body)


def mint_link_token() -> str:
    """Return the token of a new sign-in link."""
    return "cfl_" + _random(_LOOKUP_LENGTH + _RANDOM_LENGTH)


def parse_secret(text: str) -> ParsedSecret | Refused:
    """Parse the text of an API token.

    Returns Refused("malformed") if the text is not a credential, and Refused("unknown") if it cannot be a Hearth token.
    """
    match = _OURS.fullmatch(text)
    if match is None:
        return Refused("unknown" if _CREDENTIAL_LIKE.fullmatch(text) else "malformed")
    body, checksum = text[:-_CHECKSUM_LENGTH], text[-_CHECKSUM_LENGTH:]
    if _checksum(body) != checksum:
        return Refused("unknown")
    return ParsedSecret(_PREFIXES[match[1]], match[2])


def keyed_hash(pepper: bytes, text: str) -> bytes:
    """Return the digest stored for a secret: HMAC-SHA-256 with the server's pepper as the key."""
    return hmac.digest(pepper, text.encode(), "sha256")


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    digits = ""
    for _ in range(_CHECKSUM_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
