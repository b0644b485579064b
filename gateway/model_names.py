"""Resolve a model name to the model that runs, or to the reason why none does: unknown, retired, or listed without
weights.

The registry is in memory; only unknown names are looked up in the database. The pipeline and the routes about models
share these functions, so that both give the same errors.
"""

from __future__ import annotations

import difflib
from typing import Any

from catalog.card import ModelCard, parse_model_id
from catalog.listed import ListedModel
from catalog.registry import Registry, Resolved
from catalog.search import AnyModel
from engine.protocol.tasks.task import Task
from gateway.errors import Reason, Refusal


async def find_model(registry: Registry, text: str) -> Resolved:
    """Return the model that runs for a name. Raises InvalidModelId, and Refusal: MODEL_UNKNOWN, MODEL_RETIRED,
    MODEL_NOT_HERE."""
    resolved = registry.find(text)
    if resolved is None:
        name = parse_model_id(text)
        resolved = registry.find(name) or await registry.look_up(name)
    if resolved is None:
        listed = registry.find_listed(name)
        if listed is None:
            raise _unknown(registry, name)
        if registry.is_retired(listed):
            raise _retired(listed, listed.successor)
        raise Refusal(Reason.MODEL_NOT_HERE, f"{name} or task: {_remedy(listed)}")
    if registry.is_retired(resolved.card):
        raise _retired(resolved.card, resolved.card.properties.get("successor"))
    return resolved


async def find_shown(registry: Registry, text: str) -> AnyModel:
    """Return the model to describe for a name; listed and retired models included. Raises InvalidModelId, Refusal."""
    name = parse_model_id(text)
    resolved = registry.find(name) or await registry.look_up(name)
    found = registry.find_listed(name) if resolved is None else resolved.card
    if found is None:
        raise _unknown(registry, name)
    return found


def model_in(body: dict[str, Any], default: str) -> str:
    """Return the model name in a request body. A body without the field gets `default`, unless `default` is empty.
    Raises Refusal."""
    model = body.get("model", default or None)
    if not isinstance(model, str):
        raise Refusal(Reason.INPUT_INVALID, "required properties at '/' are 'model'")
    return model


def require_task(card: ModelCard, task: type[Task]) -> None:
    """Raise Refusal if the model does another task than the endpoint."""
    if card.task_slug != task.slug:
        raise Refusal(Reason.MODEL_UNKNOWN, card.name, suggestion=f"The task of this model is {card.task}.")


def _unknown(registry: Registry, name: str) -> Refusal:
    """Return the refusal for an unknown name, with similar names of models that can run."""
    similar = difflib.get_close_matches(name, [card.name for card in registry.all()], n=3, cutoff=0.7)
    suggestion = f"Did you mean {' or '.join(similar)}?" if similar else ""
    return Refusal(Reason.MODEL_UNKNOWN, name, suggestion=suggestion)


def _retired(model: AnyModel, successor: str | None) -> Refusal:
    instead = f"use {successor} instead" if successor else "use an alternative model"
    alias = f"The operator can serve another model under this name with `hearth model alias {model.name} <model>`."
    return Refusal(Reason.MODEL_RETIRED, f"{model.planned_deprecation_date}. Please {instead}", suggestion=alias)


def _remedy(model: ListedModel) -> str:
    alias = f"can serve another model under this name with `hearth model alias {model.name} <model>`"
    way = f"`hearth model pull {model.name}`" if model.hub else f"`hearth model publish <folder> --name {model.name}`"
    return f"it is listed, but its weights are not installed. The operator installs them with {way}, or {alias}"
