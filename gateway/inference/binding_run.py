"""`POST /run`: what `env.AI.run` sends; any model, its own shape, without an envelope.

The body is JSON, `{"inputs", "options"}`, or one input as it is (a stream, a form) with the others in the query. The
binding has lost the name of that one: its kind and the model's task say which it was.
"""

from __future__ import annotations

import base64
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from catalog.card import ModelCard
from catalog.schemas import input_schema
from gateway.call import Asked, Door
from gateway.errors import Reason, Refusal
from gateway.http import binding, json_body
from gateway.http.exchange import Exchange
from gateway.http.multipart import parse_form
from gateway.inference.run import RUN

_RAW = ""  # where a raw input lies until it has a name
_TEXT_INPUTS = {"text-generation": "prompt", "text-embeddings": "text"}
_SOUND_TASKS = frozenset({"automatic-speech-recognition", "voice-activity-detection"})


@dataclass(frozen=True)
class _Raw:
    """An input that came as the body itself."""

    content_type: str
    data: bytes


def open_body(exchange: Exchange, body: bytes) -> dict[str, Any]:
    """The inputs, and the options as `ai/run` takes them. Raises Refusal."""
    others = next((value for name, value in parse_qsl(exchange.query_string) if name == b"userInputs"), None)
    if others is None:
        told = json_body.parse(body)
        return _object(told.get("inputs"), "inputs") | {"options": _object(told.get("options") or {}, "options")}
    if not body:
        raise Refusal(Reason.BODY_MISSING)
    inputs = json_body.parse(others) if others.strip() else {}
    return inputs | {_RAW: _Raw((exchange.header(b"content-type") or b"").decode("latin-1"), body)}


def read(card: ModelCard, body: dict[str, Any]) -> Asked:
    """What is asked, the body's one raw input put back under its name. Raises Refusal."""
    raw = body.get(_RAW)
    if isinstance(raw, _Raw):
        body |= _named(card, raw)
    return RUN.read(card, {name: _plain(value) for name, value in body.items()})


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '/{name}', expected 'object'")
    return value


def _named(card: ModelCard, raw: _Raw) -> dict[str, Any]:
    """A raw input under its name: a form's fields under theirs."""
    kind = raw.content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _fields(raw)
    if kind.startswith("text/") and card.task_slug in _TEXT_INPUTS:
        return {_TEXT_INPUTS[card.task_slug]: raw.data.decode("utf-8", "replace")}
    name = "audio" if kind.startswith("audio/") or card.task_slug in _SOUND_TASKS else "image"
    if not input_schema(card).has_field(name):
        raise Refusal(Reason.INPUT_INVALID, f"'/{name}' is not accepted: this model takes no {name} as its body")
    return {name: base64.b64encode(raw.data).decode("ascii")}


def _fields(raw: _Raw) -> dict[str, Any]:
    """A form's texts, and its files in base64."""
    with tempfile.TemporaryDirectory(prefix="hearth-form-") as folder:
        form = parse_form(raw.data, raw.content_type, Path(folder))
        files = {name: base64.b64encode(path.read_bytes()).decode("ascii") for name, path in form.files.items()}
    return {**form.texts, **files}


def _plain(value: Any) -> Any:
    """An input as the AI SDK writes it, `{"body": base64, "contentType"}`, is its body."""
    if isinstance(value, dict) and value.keys() == {"body", "contentType"} and isinstance(value["body"], str):
        return value["body"]
    return value


BINDING_RUN = Door(is_openai=False, read=read, open_body=open_body, model_of=binding.model_of, takes_batches=True)
