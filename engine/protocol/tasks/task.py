"""Task: the base of every task's input, with the questions that the platform asks about a task.

To add a task, write a subclass in this folder and list it in `registry.py`. The gateway then reads its native bodies,
renders its responses, and estimates its cost without knowing the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self

from msgspec import Struct, structs

from engine.protocol.images import Image, MediaFile, MediaKind
from engine.protocol.rendering import Renderer

CHARACTERS_PER_TOKEN = 4  # an estimate, precise enough to balance load
MAX_IMAGE_PIXELS = 2_000_000  # larger images are scaled down before a model sees them


class ModelLimits(Protocol):
    """Values of a model card that readers need."""

    @property
    def default_max_tokens(self) -> int: ...
    @property
    def context_window(self) -> int: ...
    @property
    def schema(self) -> str: ...


class Task(Struct, frozen=True):
    """The validated input of one call. Subclasses add fields, which travel from the gateway to the node."""

    slug: ClassVar[str]  # the task's id in manifests and node statuses, and the tag on the wire
    native_schemas: ClassVar[tuple[str, ...]]  # files in `catalog/schemas/` that cards of this task may name
    can_stream: ClassVar[bool] = False
    text_field: ClassVar[str] = ""  # native field that a `text/*` request body stands for
    binary_field: ClassVar[str] = "image"  # native field that a binary request body stands for
    media_fields: ClassVar[Mapping[str, MediaKind]] = {}  # fields with files that the gateway decodes
    max_image_pixels: ClassVar[int] = MAX_IMAGE_PIXELS
    max_unread_bytes: ClassVar[int] = 256 * 1024  # unread events of a slow client's stream; more of them end the call

    def media_files(self) -> Iterator[MediaFile]:
        """Yield the files that the gateway decodes before a node receives the task: those of `media_fields`, which hold
        bytes (audio), an Image, a tuple of Images, or None. A task with files elsewhere overrides both methods."""
        for name, kind in self.media_fields.items():
            for value in _values(getattr(self, name)):
                data = value.pixels if isinstance(value, Image) else value
                yield MediaFile(name, kind, data, self.max_image_pixels)

    def with_media(self, decoded: Iterator[bytes | Image]) -> Self:
        """Return the task with its files decoded; `decoded` has the samples or image of each file, in order."""
        changes: dict[str, Any] = {}
        for name in self.media_fields:
            value = getattr(self, name)
            found = [next(decoded) for _ in _values(value)]
            if found:
                changes[name] = tuple(found) if isinstance(value, tuple) else found[0]
        return structs.replace(self, **changes)

    @property
    def always_streams(self) -> bool:
        """True if the native response is sent while the output is computed, without a request to do so."""
        return False

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
    def audio_ms(self) -> int:
        """The milliseconds of audio that the call is charged for, once the recording is decoded."""
        return 0

    @property
    def num_image_tiles(self) -> int:
        """The image tiles that the call is charged for, once the images are decoded."""
        return 0

    @property
    def num_steps(self) -> int:
        """The denoising steps that the call may be charged for."""
        return 0

    @property
    def num_characters(self) -> int:
        """The characters of a text to speak that the call is charged for."""
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


def _values(value: Any) -> tuple[Any, ...]:
    """Return the files of a field: none, one or several."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)
