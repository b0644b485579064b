"""Versions of objects that several people edit: a change that names an older version is rejected, so nothing is lost.

A version is derived from the object's values, so equal objects have equal versions. The caller reads and changes the
object within one transaction that holds its lock.
"""

from __future__ import annotations

import hashlib

import msgspec

from storage.errors import StoreError


class VersionChanged(StoreError):
    """The object has changed since the version that the caller has read."""


def version_of(*values: object) -> str:
    """Return the version of an object with these values."""
    return hashlib.sha256(msgspec.json.encode(values)).hexdigest()[:16]


def check_version(current: str, expected: frozenset[str] | None) -> None:
    """Raise VersionChanged unless `current` is one of the expected versions; None expects any."""
    if expected is not None and current not in expected:
        raise VersionChanged(f"the version is now {current}")
