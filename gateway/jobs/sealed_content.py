"""Encryption of stored content: compressed, then encrypted with a key of the account that no store holds. Pure.

Names under which content is stored are keyed hashes, so that they reveal nothing either.
"""

from __future__ import annotations

import hmac
import os
import zlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class Sealer:
    """Encrypts one kind of content, named by `purpose`. Content of one purpose cannot be decrypted for another."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._secret = secret
        self._purpose = purpose

    def seal(self, account_id: str, content: bytes) -> bytes:
        """Return the encrypted content."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher(account_id).encrypt(nonce, zlib.compress(content, 1), None)

    def open(self, account_id: str, sealed: bytes, max_bytes: int) -> bytes:
        """Return the content. Raises ValueError if it was not encrypted by `seal` for this account, or is longer than
        `max_bytes`."""
        try:
            packed = self._cipher(account_id).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
            inflater = zlib.decompressobj()
            content = inflater.decompress(packed, max_bytes)
        except (InvalidTag, zlib.error) as error:
            raise ValueError("not encrypted for this account") from error
        if inflater.unconsumed_tail:
            raise ValueError("longer than max_bytes")
        return content

    def hash_of(self, account_id: str, name: str) -> str:
        """Return a keyed hash of a name (64 hexadecimal digits)."""
        return self._key("the place of", account_id, name).hex()

    def _cipher(self, account_id: str) -> AESGCM:
        return AESGCM(self._key("the content of", account_id, ""))

    def _key(self, use: str, account_id: str, name: str) -> bytes:
        return hmac.digest(self._secret, f"{self._purpose}: {use} {account_id}/{name}".encode(), "sha256")
