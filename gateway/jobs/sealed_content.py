"""Content that is kept for a while: compressed, and encrypted under a key of the account's that no store holds. Pure.

Where it lies tells nothing either: names are keyed hashes.
"""

from __future__ import annotations

import hmac
import os
import zlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class Sealer:
    """Seals one kind of content, which `purpose` names: what was sealed as one kind opens as no other."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._secret = secret
        self._purpose = purpose

    def seal(self, account_id: str, content: bytes) -> bytes:
        """The content as it may lie in a store."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher(account_id).encrypt(nonce, zlib.compress(content, 1), None)

    def open(self, account_id: str, sealed: bytes, max_bytes: int) -> bytes:
        """The content again. Raises ValueError for what was not sealed by `seal`, or holds more than `max_bytes`."""
        try:
            packed = self._cipher(account_id).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
            inflater = zlib.decompressobj()
            content = inflater.decompress(packed, max_bytes)
        except (InvalidTag, zlib.error) as error:
            raise ValueError("not sealed here, for this account") from error
        if inflater.unconsumed_tail:
            raise ValueError("more than may be kept")
        return content

    def hash_of(self, account_id: str, what: str) -> str:
        """A name that tells nothing of what it names (64 hexadecimal digits)."""
        return self._key("the place of", account_id, what).hex()

    def _cipher(self, account_id: str) -> AESGCM:
        return AESGCM(self._key("the content of", account_id, ""))

    def _key(self, use: str, account_id: str, what: str) -> bytes:
        return hmac.digest(self._secret, f"{self._purpose}: {use} {account_id}/{what}".encode(), "sha256")
