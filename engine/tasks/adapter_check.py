"""Check whether an adapter fits this model before its first sequence. Headers are read once, in a thread.

The process that runs the model checks again what it loads; this check names the problem for the caller.
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
        self._found: BoundedCache[str, str] = BoundedCache(
            _MAX_REMEMBERED
        )  # digest -> error message, "" if the adapter fits

    async def check(self, adapter: LocalAdapter) -> None:
        """Check an adapter. Raises Refused."""
        wrong = self._found.get(adapter.digest)
        if wrong is None:
            wrong = await asyncio.to_thread(self._find_fault, Path(adapter.folder))
            self._found.put(adapter.digest, wrong)
        if wrong:
            raise Refused("invalid_input", f"'/lora' cannot be used with this model: {wrong}")

    def _find_fault(self, folder: Path) -> str:
        if not self._sites:
            return (
                "it takes no adapters here: there is no memory for any (HEARTH_NODE_ADAPTER_BYTES), or it runs on a GPU"
            )
        try:
            check_fit(read_adapter(folder), self._sites, self._architecture)
        except AdapterError as error:
            return str(error)
        return ""
