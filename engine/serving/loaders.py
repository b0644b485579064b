"""Load models: one loader per task, with one error type for all of them.

The only module of the node that knows which classes implement which task.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from catalog.errors import CardError
from engine.config import DEFAULT_SPECULATION, DRAFT, EngineConfig
from engine.embeddings.single_pass import WorkerLoadError
from engine.processes.zygote import Zygote, ZygoteError
from engine.ranks.replica import ReplicaLoadError
from engine.serving.disk_cache import CacheFull
from engine.serving.model_store import FindsModels, LocalModel, ModelUnavailable
from engine.tasks.text_embeddings import TextEmbedder
from engine.tasks.text_generation import TextGenerator
from engine.tasks.work import ModelLoadError, TaskModel
from engine.text.files import TokenizerUnusable
from storage.errors import StoreError

logger = logging.getLogger(__name__)


class LoadSettings(Protocol):
    """Settings for loading models, shared by the node and the standalone server."""

    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def kv_memory_bytes(self) -> int: ...
    @property
    def adapter_memory_bytes(self) -> int: ...
    @property
    def max_sequences(self) -> int: ...
    @property
    def max_waiting(self) -> int: ...
    @property
    def max_step_tokens(self) -> int: ...
    @property
    def tensor_parallel(self) -> int: ...
    @property
    def step_timeout_s(self) -> float: ...
    @property
    def speculation(self) -> str:
        """Return the speculation method for `EngineConfig`, or "card" for the one in each model's manifest."""
        ...


class Loaders:
    """Loads models in processes forked from `zygote`."""

    def __init__(self, zygote: Zygote, settings: LoadSettings, store: FindsModels | None = None) -> None:
        """`store` provides draft models that cards name."""
        self._zygote = zygote
        self._store = store
        self._settings = settings
        self._num_threads = settings.num_threads or max(1, len(os.sched_getaffinity(0)) - 1)
        self._by_task = {"text-generation": self._text_generation, "text-embeddings": self._text_embeddings}

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self._by_task)

    async def load(self, model: LocalModel, on_exit: Callable[[str], None]) -> TaskModel:
        """Load a model. `on_exit` is called if its process ends unexpectedly. Raises ModelLoadError."""
        load = self._by_task.get(model.manifest.task)
        if load is None:
            raise ModelLoadError(f"this node has nothing for the task {model.manifest.task}")
        try:
            return await load(model, on_exit)
        except (TokenizerUnusable, ReplicaLoadError, WorkerLoadError, ZygoteError) as error:
            raise ModelLoadError(str(error)) from error

    async def _text_generation(self, model: LocalModel, on_exit: Callable[[str], None]) -> TaskModel:
        settings = self._settings
        config = EngineConfig(
            model_dir=model.folder,
            dtype=settings.dtype,
            device=settings.device,
            kv_memory_bytes=settings.kv_memory_bytes,
            adapter_memory_bytes=settings.adapter_memory_bytes,
            max_sequences=settings.max_sequences,
            max_waiting=settings.max_waiting,
            max_step_tokens=settings.max_step_tokens,
            step_timeout_s=settings.step_timeout_s,
            max_model_len=model.manifest.context_window,
            num_threads=self._num_threads,
            tensor_parallel=settings.tensor_parallel,
        )
        async with self._speculation(model) as speculation:
            config = dataclasses.replace(config, speculation=speculation)
            return await TextGenerator.load(self._zygote, config, model.revision, on_exit, model.manifest.tool_parser)

    @contextlib.asynccontextmanager
    async def _speculation(self, model: LocalModel) -> AsyncIterator[str]:
        """Provide the model's speculation method, with the draft model's files available while it loads. A draft model
        that is unavailable disables speculation only."""
        wanted = self._settings.speculation
        if wanted == "card":
            wanted = model.manifest.speculation or DEFAULT_SPECULATION
        name = wanted.removeprefix(DRAFT)
        if name == wanted or self._store is None:
            yield wanted
            return
        try:
            draft = await self._store.open(name, await self._store.current_revision(name))
        except (ModelUnavailable, CacheFull, StoreError, CardError, OSError) as error:
            logger.warning("a draft model is not here", extra={"model": model.name, "draft": name, "why": str(error)})
            yield DEFAULT_SPECULATION
            return
        try:
            yield f"{DRAFT}{draft.folder}"
        finally:
            self._store.release(draft.revision)

    async def _text_embeddings(self, model: LocalModel, on_exit: Callable[[str], None]) -> TaskModel:
        settings = self._settings
        return await TextEmbedder.load(self._zygote, model.folder, settings.device, self._num_threads, on_exit)
