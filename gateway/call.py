"""What travels: `Asked`, what an endpoint made of a body, and `Call`, one authenticated inference call, frozen.

Knows no stage that uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec import Struct

from catalog.card import ModelCard
from engine.protocol.outcome import Outcome
from engine.protocol.responses import ResponseRequest
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration
from gateway.http import json_body
from gateway.http.exchange import Exchange
from gateway.shapes.shape import Shape
from tenants.credentials.principal import Principal


class Call(Struct, frozen=True, kw_only=True):
    """Who asks for what, and what placement and metering need to know of it.

    `shown_model` is the id the client used, `card` the model that answers. `namespace` (32 bytes) keys the prefix
    cache and `tenant` fairness; both are derived by us. `affinity` is what should meet the same node again.
    `num_estimated_tokens` is prompt and completion, guessed from text length. `started_s` is the monotonic clock's,
    `deadline_s` the event loop's, which may be coarser. `is_batch`: it was queued, and costs what queued calls cost.
    `num_bytes_in` is the body's length, `body_hash` is what it is known again by, 0 where its client says nothing of
    retries; `is_retry`: that it asked before.
    """

    request_id: str
    principal: Principal
    card: ModelCard
    shown_model: str
    task: TaskInput
    is_stream: bool
    namespace: bytes
    tenant: int
    affinity: bytes
    num_estimated_tokens: int
    started_at: datetime
    started_s: float
    deadline_s: float
    is_batch: bool = False
    num_bytes_in: int = 0
    body_hash: int = 0
    is_retry: bool = False


class Record(Struct, frozen=True):
    """What is kept of a response to be told again: itself and the items of its input, as JSON. One that is to run in
    the background says so (`queued`), until it is finished."""

    response: bytes
    input_items: bytes


def _no_record(_call: Call, _outcome: Outcome | None) -> Record:
    raise AssertionError("only what joins a thread is told again")


class Asked(Struct, frozen=True):
    """What a body asks for, and the shape its answer is to have. `lora` names the finetune that it is to go through;
    `thread`: it may go on from an earlier response, and be gone on from, and `make_record` tells what is kept of it,
    also before there is an outcome. `others`: more prompts of the same body, each a call of its own with as many
    choices."""

    task: TaskInput
    is_stream: bool
    make_shape: Callable[[Call], Shape]
    thread: ResponseRequest | None = None
    make_record: Callable[[Call, Outcome | None], Record] = _no_record
    lora: str | None = None
    others: tuple[TextGeneration, ...] = ()


@dataclass(frozen=True)
class Door:
    """One family of inference endpoints. `read` turns an admitted model and a parsed body into what is asked; the
    model's name comes from the path, or else from the body's `model`. `schemas` name the files of `catalog/schemas/`
    that say what bodies and answers can be; none stands for every card's own. `open_body` makes of the bytes that came
    what `read` takes; `model_of` finds the model's name where it is in neither place. `takes_batches`: a body may also
    be one of several requests, or about such a batch (`batches/body.py`)."""

    is_openai: bool
    read: Callable[[ModelCard, dict[str, Any]], Asked]
    schemas: tuple[str, ...] = ()
    open_body: Callable[[Exchange, bytes], dict[str, Any]] = lambda _exchange, body: json_body.parse(body)
    model_of: Callable[[Exchange], str] | None = None
    takes_batches: bool = False


CHARACTERS_PER_TOKEN = 4  # a guess, good enough to balance load
_OPENING_TOKENS = 64  # of a prompt in token ids
_CHARACTERS_PER_TOOL = 200  # of its name and parameters; the same kind of guess


def opening_of(task: TaskInput) -> str:
    """How the text of a task begins: what calls that could share cached blocks have in common."""
    if isinstance(task, TextEmbeddings):
        return task.texts[0]
    adapter = task.adapter.digest[:16] if task.adapter is not None else ""
    if task.messages is None:
        return adapter + (task.prompt or str(task.prompt_token_ids[:_OPENING_TOKENS] if task.prompt_token_ids else ""))
    return adapter + "\n".join([message.content for message in task.messages[:4]])


def most_completion_tokens_of(task: TaskInput) -> int:
    """What a task may generate, at most."""
    return 0 if isinstance(task, TextEmbeddings) else task.sampling.max_tokens * task.num_choices


def estimated_tokens_of(task: TaskInput) -> int:
    """Prompt and completion tokens, guessed."""
    if isinstance(task, TextEmbeddings):
        return sum(map(len, task.texts)) // CHARACTERS_PER_TOKEN
    num_characters = len(task.prompt or "") + sum([len(message.content) for message in task.messages or ()])
    num_tokens = len(task.prompt_token_ids or ()) + task.sampling.max_tokens * task.num_choices
    num_characters += sum([len(tool.description) + _CHARACTERS_PER_TOOL for tool in task.tools])
    return num_characters // CHARACTERS_PER_TOKEN + num_tokens
