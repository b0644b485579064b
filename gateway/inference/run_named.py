"""`POST A/ai/run`: any model, named in the body beside its input and options, in its own shape and the envelope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from catalog.card import ModelCard
from gateway.call import Asked
from gateway.errors import Reason, Refusal
from gateway.http import json_body
from gateway.http.exchange import Exchange
from gateway.inference.run import RUN


def open_body(_exchange: Exchange, body: bytes) -> dict[str, Any]:
    """The input, with the model and the options as `ai/run/{model}` takes them. Raises Refusal."""
    told = json_body.parse(body)
    if told.get("input") is None:
        raise Refusal(Reason.INPUT_INVALID, "required properties at '/' are 'input'")
    given, options = _object(told["input"], "input"), _object(told.get("options") or {}, "options")
    return given | {"model": told.get("model"), "options": options}


def read(card: ModelCard, body: dict[str, Any]) -> Asked:
    """As the route with the model in its path. Raises Refusal."""
    return RUN.read(card, body)


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '/{name}', expected 'object'")
    return value


RUN_NAMED = replace(RUN, read=read, schemas=("run_named",), open_body=open_body)
