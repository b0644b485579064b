"""The last frame of a broken stream. Formats whose clients expect a frame of their own subclass `OwnErrorFrame`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from engine.protocol.rendering import Renderer
from gateway import envelope
from gateway.errors import Refusal


class OwnErrorFrame(Renderer, ABC):
    """A renderer with its own error frame."""

    @abstractmethod
    def error(self, refusal: Refusal) -> bytes:
        """Return the last frame of a stream that ends with this refusal."""


def error_frame(renderer: Renderer, refusal: Refusal) -> bytes:
    """Return the last frame of a stream of this renderer; by default one that native and OpenAI clients both read."""
    return renderer.error(refusal) if isinstance(renderer, OwnErrorFrame) else envelope.error_frame(refusal)
