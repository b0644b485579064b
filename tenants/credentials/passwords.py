"""Passwords: rules, argon2id hashes, and comparison in a time that does not depend on whether the user exists.

Hashing takes tens of milliseconds and 64 MiB, so it runs in threads, a few at a time.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

MIN_CHARACTERS, MAX_CHARACTERS = 12, 256
MAX_CONCURRENT, MAX_WAITING = 2, 32

_HASHER = PasswordHasher()  # argon2id with the parameters that RFC 9106 recommends where memory is limited


class TooManyWaiting(Exception):
    """More than MAX_WAITING passwords wait for comparison."""


def check_password(password: str) -> None:
    """Raise ValueError if a new password is too short or too long."""
    if not MIN_CHARACTERS <= len(password) <= MAX_CHARACTERS:
        raise ValueError(
            f"the password must have {MIN_CHARACTERS} to {MAX_CHARACTERS} characters (got {len(password)})"
        )


def generate_password() -> str:
    """Return a random password of 24 characters."""
    return secrets.token_urlsafe(18)


def hash_password(password: str) -> str:
    """Return the hash to store. Raises ValueError for a password that `check_password` rejects."""
    check_password(password)
    return _HASHER.hash(password)


class PasswordVerifier:
    """Compares passwords with stored hashes, at most MAX_CONCURRENT at once."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._num_waiting = 0

    async def is_correct(self, password: str, password_hash: str | None) -> bool:
        """Return True if the password has this hash. Without a hash, takes as long and returns False.

        Raises TooManyWaiting.
        """
        if self._num_waiting >= MAX_WAITING:
            raise TooManyWaiting
        self._num_waiting += 1
        try:
            async with self._slots:
                is_equal = await asyncio.to_thread(_matches, password[: MAX_CHARACTERS + 1], password_hash)
        finally:
            self._num_waiting -= 1
        return is_equal and password_hash is not None


def _matches(password: str, password_hash: str | None) -> bool:
    try:
        return _HASHER.verify(password_hash or _placeholder_hash(), password)
    except (VerificationError, InvalidHashError):
        return False


@cache
def _placeholder_hash() -> str:
    """Return the hash with which passwords of unknown users are compared."""
    return _HASHER.hash(secrets.token_hex(16))
