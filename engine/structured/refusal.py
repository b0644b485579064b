"""The error of a constraint that cannot be enforced."""

from __future__ import annotations


class ConstraintRefused(Exception):
    """The constraint cannot be enforced; the message tells the caller why. `is_timeout`: checking it took too long."""

    def __init__(self, message: str, *, is_timeout: bool = False) -> None:
        super().__init__(message)
        self.is_timeout = is_timeout
