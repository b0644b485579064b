"""How a model becomes hot: one loader per task, and the errors of all of them as one.

The only file of the node that knows which classes do which task.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from engine.config import EngineConfig
from engine.node.model_store import LocalModel
from engine.replica import ReplicaLoadError
from engine.single_pass import WorkerLoadError
from engine.tasks.text_embeddings import TextEmbedder
from engine.tasks.text_generation import TextGenerator
from engine.tasks.work import TaskModel
from engine.tokenizer import TokenizerUnusable
from engine.zygote import Zygote, ZygoteError


class LoadFailed(Exception):
    """The model's files are here and it could not be loaded; the text says why, for the operator."""


class LoadSettings(Protocol):
    """How models are loaded here: part of the node's settings, and of the standalone server's."""

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


class Loaders:
    """Loads models as the settings say, in processes forked from `zygote`."""

    def __init__(self, zygote: Zygote, settings: LoadSettings) -> None:
        self._zygote = zygote
        self._settings = settings
        self._num_threads = settings.num_threads or max(1, len(os.sched_getaffinity(0)) - 1)
        self._by_task = {"text-generation": self._text_generation, "text-embeddings": self._text_embeddings}

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self._by_task)

    async def load(self, model: LocalModel, on_exit: Callable[[str], None]) -> TaskModel:
        """The model, hot; `on_exit` hears if its process ends unasked. Raises LoadFailed."""
        load = self._by_task.get(model.manifest.task)
        if load is None:
            raise LoadFailed(f"this node has nothing for the task {model.manifest.task}")
        try:
            return await load(model, on_exit)
        except (TokenizerUnusable, ReplicaLoadError, WorkerLoadError, ZygoteError) as error:
            raise LoadFailed(str(error)) from error

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
        return await TextGenerator.load(self._zygote, config, model.revision, on_exit, model.manifest.tool_parser)

    async def _text_embeddings(self, model: LocalModel, on_exit: Callable[[str], None]) -> TaskModel:
        settings = self._settings
        return await TextEmbedder.load(self._zygote, model.folder, settings.device, self._num_threads, on_exit)
