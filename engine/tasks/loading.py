"""Loading a model for its task: the request that a task's `load` function gets, and the error that it raises."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.processes.zygote import Zygote


class ModelLoadError(Exception):
    """Raised if a model whose files are present cannot be loaded. The text explains the reason to the operator."""


class ModelDeviceLost(ModelLoadError):
    """Raised if the model's device cannot create a context, so that loading again is useless."""


class LoadSettings(Protocol):
    """Settings for loading models, shared by the node and the standalone server. A `kv_memory_bytes` of 0 takes what is
    free."""

    @property
    def device(self) -> str: ...
    @property
    def attention(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...
    @property
    def has_graphs(self) -> bool: ...
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
    def coalesce_ms(self) -> int: ...
    @property
    def speculation(self) -> str:
        """The speculation method for `EngineConfig`, or "card" for the one in each model's manifest."""
        ...


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """A model to load in processes forked from `zygote`.

    `context_window`, `tool_parser` and `speculation` are those of the model's manifest; `num_threads` is at least 1.
    `on_exit` is called with a message if a process of the model ends unexpectedly. `open_model` provides the folder of
    another model, such as a draft model, within a context; None if that model is unavailable. `kv_bytes` is the memory
    for the KV cache, 0 for that of `settings`. With `sleeps`, the model is loaded so that it can sleep, if its device
    supports that.
    """

    folder: Path
    revision: str
    context_window: int
    tool_parser: str | None
    speculation: str | None
    settings: LoadSettings
    num_threads: int
    zygote: Zygote
    on_exit: Callable[[str], None]
    open_model: Callable[[str], AbstractAsyncContextManager[Path | None]]
    kv_bytes: int = 0
    sleeps: bool = False
