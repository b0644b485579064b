"""A model's name -> what answers to it, or why nothing does: unknown, retired, or listed without weights here.

Memory reads, but for a name that nothing answers to, which is looked up in the database; `pipeline.py` and the routes
about models share it, so that each tells the same.
"""

from __future__ import annotations

from catalog.card import RUN_TASKS, parse_model_id
from catalog.listed import ListedModel
from catalog.registry import Registry, Resolved
from catalog.search import AnyModel
from gateway.errors import Reason, Refusal


async def find_model(registry: Registry, text: str) -> Resolved:
    """What answers to a name. Raises InvalidModelId, or Refusal: MODEL_UNKNOWN, MODEL_RETIRED, MODEL_NOT_HERE."""
    resolved = registry.find(text)  # what something answers to is well formed
    if resolved is None:
        name = parse_model_id(text)
        resolved = registry.find(name) or await registry.look_up(name)
    if resolved is None:
        listed = registry.find_listed(name)
        if listed is None:
            raise Refusal(Reason.MODEL_UNKNOWN, name)
        if registry.is_retired(listed):
            raise _retired(listed, listed.successor)
        raise Refusal(Reason.MODEL_NOT_HERE, f"{name} or task: {_what_to_do(listed)}")
    if registry.is_retired(resolved.card):
        raise _retired(resolved.card, resolved.card.properties.get("successor"))
    return resolved


async def find_shown(registry: Registry, text: str) -> AnyModel:
    """What is told of a name: of listed models as well, and of those that are over. Raises InvalidModelId, Refusal."""
    name = parse_model_id(text)
    resolved = registry.find(name) or await registry.look_up(name)
    found = registry.find_listed(name) if resolved is None else resolved.card
    if found is None:
        raise Refusal(Reason.MODEL_UNKNOWN, name)
    return found


def _retired(model: AnyModel, successor: str | None) -> Refusal:
    instead = f"use {successor} instead" if successor else "use an alternative model"
    return Refusal(Reason.MODEL_RETIRED, f"{model.planned_deprecation_date}. Please {instead}")


def _what_to_do(model: ListedModel) -> str:
    alias = f"lets another model answer with `hearth model alias {model.name} <model>`"
    if model.task not in RUN_TASKS:
        return f"it is listed, but nodes do not do {model.task} yet. The operator {alias}"
    way = f"`hearth model pull {model.name}`" if model.hub else f"`hearth model publish <folder> --name {model.name}`"
    return f"it is listed, but its weights are not here. The operator brings them with {way}, or {alias}"
