"""Errors of the local platform."""

from __future__ import annotations


class PlatformError(Exception):
    """The platform cannot start or cannot continue. The message is one line for the user."""
