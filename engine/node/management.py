"""Changes of a running node that gateways ask for: drain, undrain, load, unload, pin and unpin.

A change is begun at once, and its progress shows in the node's status. An operator's drain ends when the node restarts,
and so do pins that are not in HEARTH_NODE_PINNED.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, get_args

from engine.protocol.wire import Manage, ManageAction
from engine.serving.calls import Calls
from engine.serving.replicas import Replicas
from engine.tasks.work import Refused

logger = logging.getLogger(__name__)

MAX_CHANGES = 64  # loads and unloads at once
ACTIONS: tuple[str, ...] = get_args(ManageAction)


class Management:
    """Makes changes to the calls and replicas of this process. `on_change` is called after a change of the status."""

    def __init__(self, calls: Calls, replicas: Replicas, on_change: Callable[[], None]) -> None:
        self._calls = calls
        self._replicas = replicas
        self._on_change = on_change
        self._tasks: set[asyncio.Task[None]] = set()

    def change(self, request: Manage) -> str:
        """Begin a change. Return why it cannot begin, or ""."""
        if request.action in ("drain", "undrain"):
            self._calls.is_paused = request.action == "drain"
            self._on_change()
            return ""
        if not request.model:
            return f"{request.action} needs a model"
        if request.action == "unpin":
            self._replicas.unpin(request.model)
            return ""
        if len(self._tasks) >= MAX_CHANGES:
            return f"{MAX_CHANGES} models are being loaded or unloaded already"
        if request.action != "unload":
            load = self._replicas.pin if request.action == "pin" else self._replicas.load_current
            self._start(load(request.model))
            return ""
        if self._replicas.is_pinned(request.model):
            return f"{request.model} is pinned; unpin it first"
        if not any(replica.model == request.model for replica in self._replicas.statuses()):
            return f"{request.model} is not loaded"
        self._start(self._replicas.unload(request.model, waits=True))
        return ""

    def close(self) -> None:
        """Cancel the changes in progress."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(Refused):  # the replica's status says why
            await work
