"""Task: the base of every task's input, with the questions that the platform asks about a task.

To add a task, write a subclass in this folder and list it in `registry.py`. The gateway then reads its native bodies,
renders its responses, and estimates its cost without knowing the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

from msgspec import Struct

from engine.protocol.rendering import Renderer

CHARACTERS_PER_TOKEN = 4  # an estimate, precise enough to balance load


class ModelLimits(Protocol):
    """Values of a model card that readers need."""

    @property
    def default_max_tokens(self) -> int: ...
    @property
    def context_window(self) -> int: ...


class Task(Struct, frozen=True):
    """The validated input of one call. Subclasses add fields, which travel from the gateway to the node."""

    slug: ClassVar[str]  # the task's id in manifests and node statuses, and the tag on the wire
    native_schemas: ClassVar[tuple[str, ...]]  # files in `catalog/schemas/` that cards of this task may name
    can_stream: ClassVar[bool] = False
    text_field: ClassVar[str] = ""  # native field that a `text/*` request body stands for
    binary_field: ClassVar[str] = "image"  # native field that a binary request body stands for

    @property
    def num_choices(self) -> int:
        """The number of outputs for the one input."""
        return 1

    @property
    def opening_text(self) -> str:
        """The start of the input. Calls that could share cached blocks have equal openings and go to the same node."""
        return ""

    @property
    def num_estimated_tokens(self) -> int:
        """Estimated tokens of prompt and completion together."""
        return 0

    @property
    def max_completion_tokens(self) -> int:
        """The most completion tokens that the call may generate."""
        return 0

    @classmethod
    def estimate_completion_tokens(cls, _body: Mapping[str, Any], _model: ModelLimits) -> int:
        """Estimate the completion tokens of a native body that has not been validated."""
        return 0

    @classmethod
    def read_native(cls, body: Mapping[str, Any], model: ModelLimits) -> Self:
        """Read a native body that its schema has accepted. Raises BadInput."""
        raise NotImplementedError

    def native_renderer(self) -> Renderer:
        """Return a renderer of the native response to this input."""
        raise NotImplementedError
