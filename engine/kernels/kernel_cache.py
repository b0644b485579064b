"""The folder of compiled Triton kernels: the versions that made it, and the kernels that were compiled in spite of it.

Triton's keys depend on its own version and on Python's, so another version of either finds nothing in the folder.
Imports neither torch nor Triton.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Mapping
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

STAMP = "versions.json"  # written by `python -m engine.kernels.compile --out`


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that Triton uses."""
    named = environ.get("TRITON_CACHE_DIR")
    return Path(named) if named else Path.home() / ".triton" / "cache"


def running_versions() -> dict[str, str]:
    """Return the versions of Triton ("none" if it is not installed) and of Python that this process has."""
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "none"
    return {"Triton": triton, "Python": ".".join(platform.python_version_tuple()[:2])}


def write_stamp(folder: Path) -> None:
    """Store the running versions beside the kernels that they have compiled."""
    (folder / STAMP).write_text(json.dumps(running_versions()) + "\n")


def stale_reason(folder: Path) -> str:
    """Return why no kernel of the folder can be used, naming both versions, or "" if the folder may have some."""
    try:
        stored = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):  # filled by Triton itself as kernels were used
        return ""
    running = running_versions()
    if stored == running:
        return ""
    return f"the kernel cache {folder} was compiled by {_shown(stored)}; this process has {_shown(running)}"


def warn_if_stale(environ: Mapping[str, str] = os.environ) -> None:
    """Log one warning if kernels have to be compiled again. To be called once per node, before models are loaded."""
    reason = stale_reason(cache_folder(environ))
    if reason:
        logger.warning("%s; kernels are compiled when they are first used", reason)


class Compilations:
    """Counts the kernels that Triton compiles in this process from now on, because its cache does not have them."""

    def __init__(self) -> None:
        self.num_kernels, self.seconds = 0, 0.0
        if util.find_spec("triton") is not None:
            import_module("triton").knobs.compilation.listener = self._note

    def _note(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        """Called by Triton for every kernel that it compiles or finds in its cache."""
        if not cache_hit:
            self.num_kernels += 1
            self.seconds += times.total / 1e6


def _shown(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {versions.get(name, 'unknown')}" for name in ("Triton", "Python"))
