"""Load the models of this process with the loaders of their tasks."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from catalog.errors import CardError
from engine.processes.zygote import Zygote
from engine.serving.disk_cache import CacheFull
from engine.serving.model_store import FindsModels, LocalModel, ModelUnavailable
from engine.tasks.loading import LoadRequest, LoadSettings, ModelLoadError
from engine.tasks.registry import LOADERS
from engine.tasks.work import TaskModel
from storage.errors import StoreError

logger = logging.getLogger(__name__)


class Loaders:
    """Loads models in processes forked from `zygote`. `store` provides further models that a model needs. With
    `sleeps`, models are loaded so that they can sleep."""

    def __init__(self, zygote: Zygote, settings: LoadSettings, store: FindsModels, *, sleeps: bool = False) -> None:
        self._sleeps = sleeps
        self._zygote = zygote
        self._settings = settings
        self._store = store
        self._num_threads = settings.num_threads or max(1, len(os.sched_getaffinity(0)) - 1)

    async def load(self, model: LocalModel, on_exit: Callable[[str], None], kv_bytes: int = 0) -> TaskModel:
        """Load a model with at most `kv_bytes` of KV cache, 0 for the setting. `on_exit` is called if its process ends
        unexpectedly. Raises ModelLoadError."""
        manifest = model.manifest
        load = LOADERS.get(manifest.task)
        if load is None:
            raise ModelLoadError(f"this node cannot run models of the task {manifest.task}")
        request = LoadRequest(
            folder=model.folder,
            revision=model.revision,
            context_window=manifest.context_window,
            tool_parser=manifest.tool_parser,
            speculation=manifest.speculation,
            settings=self._settings,
            num_threads=self._num_threads,
            zygote=self._zygote,
            on_exit=on_exit,
            kv_bytes=kv_bytes,
            sleeps=self._sleeps,
            open_model=self._open_model,
        )
        return await load(request)

    @contextlib.asynccontextmanager
    async def _open_model(self, name: str) -> AsyncIterator[Path | None]:
        """Provide the folder of the current revision of another model; None if it is unavailable."""
        try:
            model = await self._store.open(name, await self._store.current_revision(name))
        except (ModelUnavailable, CacheFull, StoreError, CardError, OSError) as error:
            logger.warning("draft model unavailable", extra={"model": name, "reason": str(error)})
            yield None
            return
        try:
            yield model.folder
        finally:
            self._store.release(model.revision)
