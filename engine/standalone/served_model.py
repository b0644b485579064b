"""The served model: loaded once, reloaded after a crash, and described to callers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

from engine.protocol.sampling import with_defaults
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.wire import Execute
from engine.serving.calls import MAX_DEADLINE_S, Calls
from engine.serving.replica_metrics import export_replicas
from engine.serving.replicas import Replicas
from engine.standalone.model_folder import FolderStore
from engine.tasks.text_generation import TextGenerator
from engine.tasks.work import TaskModel

MAX_CALLS = 1 << 16  # higher than the engine's own queue limit


class ServedModel:
    """The model of a `FolderStore`. All callers share one prefix cache and one fairness share."""

    def __init__(
        self, store: FolderStore, replicas: Replicas, names: tuple[str, ...], folder: Path, defaults: dict[str, Any]
    ) -> None:
        self.name = store.name
        self.names = names
        self.calls = Calls(replicas, MAX_CALLS)
        self._store = store
        self._replicas = replicas
        self._folder = folder
        self._defaults = defaults
        self._namespace = os.urandom(32)
        self._created = int(time.time())

    @property
    def is_ready(self) -> bool:
        return self._replicas.is_model_ready(self.name) and not self.calls.is_draining

    async def load(self, task: str = "") -> TaskModel:
        """Return the model when it is ready. Raises Refused, also if the model's task is not `task`."""
        replica = await self._replicas.acquire(self.name, self._store.revision, task)
        self._replicas.release(replica)  # no other model is ever loaded, so the replica cannot be evicted
        return replica.task_model

    async def generator(self) -> TextGenerator:
        """Return the model if it generates text. Raises Refused."""
        return cast(TextGenerator, await self.load(TextGeneration.slug))

    def filled(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body completed with the model's sampling defaults."""
        return with_defaults(body, self._defaults)

    def execute(self, request_id: str, task: TaskInput) -> Execute:
        """Return the Execute of a request's task."""
        return Execute(
            call_id=0,
            request_id=request_id,
            model=self.name,
            revision=self._store.revision,
            namespace=self._namespace,
            tenant=0,
            task=task,
            deadline_s=MAX_DEADLINE_S,
        )

    async def describe(self) -> list[dict[str, Any]]:
        """Return the model in OpenAI's format, under each of its names. Raises Refused."""
        length = (await self.load()).describe().max_model_len
        facts = {"object": "model", "created": self._created, "owned_by": "hearth", "root": str(self._folder)}
        return [{"id": name, **facts, "parent": None, "max_model_len": length} for name in self.names]

    def export(self) -> None:
        """Set the gauges of the loaded model."""
        export_replicas(self._replicas.statuses())
