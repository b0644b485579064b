"""Check whether an adapter fits this model before its first sequence. Headers are read once, in a thread.

The process that runs the model checks the adapter again when it loads it; this check names the problem for the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from engine.adapters.local_adapter import LocalAdapter
from engine.tasks.work import Refused
from telemetry.bounded_cache import BoundedCache
from weight_files.adapter_files import AdapterError, check_fit, read_adapter

_MAX_REMEMBERED = 1024


class AdapterCheck:
    """`sites` are the modules that an adapter can change with their (in, out); `architecture` is the model's."""

    def __init__(self, sites: Mapping[str, tuple[int, int]], architecture: str) -> None:
        self._sites, self._architecture = sites, architecture
        # digest -> error message, "" if the adapter fits
        self._problems: BoundedCache[str, str] = BoundedCache(_MAX_REMEMBERED)

    async def check(self, adapter: LocalAdapter) -> None:
        """Check an adapter. Raises Refused."""
        problem = self._problems.get(adapter.digest)
        if problem is None:
            problem = await asyncio.to_thread(self._find_problem, Path(adapter.folder))
            self._problems.put(adapter.digest, problem)
        if problem:
            raise Refused("invalid_input", f"'/lora' cannot be used with this model: {problem}")

    def _find_problem(self, folder: Path) -> str:
        if not self._sites:
            return "adapters are disabled for it: HEARTH_NODE_ADAPTER_BYTES is 0 or too small, or it runs on a GPU"
        try:
            check_fit(read_adapter(folder), self._sites, self._architecture)
        except AdapterError as error:
            return str(error)
        return ""
