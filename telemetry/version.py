"""Hearth's version, as installed."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str:
    """Return the version, or "unknown" in a checkout that was not installed."""
    try:
        return metadata.version("hearth")
    except metadata.PackageNotFoundError:
        return "unknown"
