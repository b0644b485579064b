"""The error of a file that cannot be converted."""

from __future__ import annotations


class DocumentRefused(Exception):
    """A file cannot be converted. The message is for the client and contains nothing from the file or a library."""
