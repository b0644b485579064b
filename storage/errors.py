"""Errors common to all stores.

    StoreError
    ├── StoreUnavailable   the store does not respond or cannot accept the request now; a retry may succeed
    ├── Conflict           an entry that should be new already exists
    ├── Missing            the requested entry does not exist
    └── Damaged            the bytes do not match their checksum

Driver exceptions do not leave this package, except exceptions that indicate a programming error.
"""

from __future__ import annotations


class StoreError(Exception):
    """Base class of all store errors."""


class StoreUnavailable(StoreError):
    """The store does not respond or cannot accept the request now."""


class Conflict(StoreError):
    """An entry that should be new already exists."""


class Missing(StoreError):
    """The requested entry does not exist."""


class Damaged(StoreError):
    """The bytes do not match their checksum."""


def means_lost(error: RuntimeError) -> bool:
    """Return True if the error is the RuntimeError that uvloop raises, instead of OSError, when writing to a
    connection that the peer has just reset."""
    return "the handler is closed" in str(error)
