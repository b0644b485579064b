"""Fixtures of this folder."""

from tests.commands import data, hearth

__all__ = ["data", "hearth"]
