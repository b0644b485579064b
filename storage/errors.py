"""What can go wrong with a store, whichever store it is.

    StoreError
    ├── StoreUnavailable   the store does not answer, or cannot take this now; the same request may work later
    ├── Conflict           what should be new is already there
    ├── Missing            what was asked for is not there
    └── Damaged            bytes do not have the checksum they should have

A driver's own exceptions stay inside this package, except those that mean a mistake of ours.
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of everything a store raises on purpose."""


class StoreUnavailable(StoreError):
    """The store does not answer, or cannot take this now."""


class Conflict(StoreError):
    """What should be new is already there."""


class Missing(StoreError):
    """What was asked for is not there."""


class Damaged(StoreError):
    """Bytes do not have the checksum they should have."""


def means_lost(error: RuntimeError) -> bool:
    """Whether this is uvloop's word for a connection that the other side has just reset: it raises no OSError when such
    a one is written to."""
    return "the handler is closed" in str(error)
