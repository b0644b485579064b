"""The text of an API token: how a secret is made, recognised and hashed. Pure; knows no rows.

    cfut_ 0123456789 abcdefghijklmnopqrstuvwxyzABCD 1a2B3c
    kind  lookup id  30 random characters           CRC-32 of all before it, base 62

The lookup id says where to look; the rest (178 bits) is what proves. The checksum lets a mistyped or invented token be
refused without asking the database.
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
# What else a client may hold in good faith: a cut or altered token of ours, a global key, a login token, and the
# older tokens without a prefix. None of them is known here.
_CREDENTIAL_LIKE = re.compile(r"(?:cfut|cfat|cfk|cfoat)_[0-9A-Za-z._-]{1,256}|[0-9A-Za-z_-]{40}")


@dataclass(frozen=True, slots=True)
class ParsedSecret:
    """A secret that is whole: its checksum is right. Whether it opens anything is not known yet."""

    kind: TokenKind
    lookup_id: str


def mint(kind: TokenKind, lookup_id: str = "") -> tuple[str, str]:
    """A fresh secret and its lookup id, which is fresh too unless one is given."""
    prefix = next(prefix for prefix, of_kind in _PREFIXES.items() if of_kind == kind)
    lookup_id = lookup_id or _random(_LOOKUP_LENGTH)
    body = prefix + lookup_id + _random(_RANDOM_LENGTH)
    return body + _checksum(body), lookup_id


def mint_global_key() -> str:
    """A user's fresh global key. It is looked up by the user's email, so nothing in it says where to look."""
    body = "cfk_" + _random(_LOOKUP_LENGTH + _RANDOM_LENGTH)
    return body + _checksum(body)


def parse_secret(text: str) -> ParsedSecret | Refused:
    """Refused("malformed") for what is no credential at all; Refused("unknown") for one that cannot be ours."""
    match = _OURS.fullmatch(text)
    if match is None:
        return Refused("unknown" if _CREDENTIAL_LIKE.fullmatch(text) else "malformed")
    body, checksum = text[:-_CHECKSUM_LENGTH], text[-_CHECKSUM_LENGTH:]
    if _checksum(body) != checksum:
        return Refused("unknown")
    return ParsedSecret(_PREFIXES[match[1]], match[2])


def keyed_hash(pepper: bytes, text: str) -> bytes:
    """What is stored of a secret: HMAC-SHA-256 under the server's pepper."""
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
