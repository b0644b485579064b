"""What bodies may say to the engine alone and not to a gateway: more choices; the model's own sampling fills them up.
Pure; chat and text completions share these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.protocol.fields import integer

MAX_CHOICES = 128


def with_defaults(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with the model's own sampling where it says nothing."""
    return {**defaults, **{name: value for name, value in body.items() if value is not None}}


def num_choices(body: Mapping[str, Any]) -> int:
    """How many answers a prompt is to have. Raises BadInput."""
    count: int = integer(body, "n", 1, minimum=1, maximum=MAX_CHOICES)
    return count
