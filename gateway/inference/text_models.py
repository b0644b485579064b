"""What the routes for text ask of a model before they read a body."""

from __future__ import annotations

from catalog.card import ModelCard
from engine.protocol.fields import BadInput
from engine.protocol.tasks.text_generation import TextGeneration
from gateway.errors import Reason, Refusal


def check_is_text(card: ModelCard) -> None:
    """Raises Refusal for a model of another task."""
    if card.task_slug != "text-generation":
        raise Refusal(Reason.MODEL_UNKNOWN, card.name)


def check_format(card: ModelCard, task: TextGeneration, pointer: str) -> None:
    """Raises BadInput for an output format, asked for at `pointer`, that the model cannot hold to."""
    if task.constraint is not None and "json_mode" not in card.capabilities:
        raise BadInput(f"'{pointer}' is not supported: the model lacks json_mode")
