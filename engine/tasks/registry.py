"""The loader of every task: the function `load` of the module in this folder that is named like the task's slug.

To add a task, add that module and list the task's input in `engine/protocol/tasks/registry.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable

from engine.protocol.tasks.registry import TASKS
from engine.tasks.loading import LoadRequest
from engine.tasks.work import TaskModel

Loader = Callable[[LoadRequest], Awaitable[TaskModel]]  # raises ModelLoadError

KV_CACHE_TASKS = frozenset({"text-generation"})  # tasks whose models have a KV cache

LOADERS: dict[str, Loader] = {
    slug: importlib.import_module(f"engine.tasks.{slug.replace('-', '_')}").load for slug in TASKS
}
