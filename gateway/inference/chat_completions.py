"""`POST A/ai/v1/chat/completions`: OpenAI's chat completions.

Programs send the same few options with every request, and checking them cost more than all other work on a body. So
the options of a body are parsed once and remembered, if they are only numbers, booleans and the model's name: nothing
that a person may have written. The messages, and the body as a whole, are validated every time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import Struct, structs

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.chat_completions import ChatRenderer, includes_usage, read_chat_request
from engine.protocol.fields import boolean
from engine.protocol.messages import read_messages
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import uses_legacy_functions
from engine.protocol.vllm_fields import reject_unsupported
from gateway.call import Call, Endpoint, ParsedRequest
from gateway.model_names import require_task

MAX_REMEMBERED = 256  # sets of options per card and schema

_PLAIN_TYPES = frozenset({int, float, bool, type(None)})

Body = dict[str, Any]
_Key = tuple[tuple[str, type, Any], ...]


class ChatOptions(Struct, frozen=True):
    """Everything in a chat body but the messages. `accepted` are the options after validation."""

    task: TextGeneration
    accepted: Body
    is_stream: bool
    is_legacy: bool
    has_usage_chunk: bool
    lora: str | None


class ChatReader:
    """Reads bodies for one card and schema."""

    def __init__(self, card: ModelCard, schema_name: str) -> None:
        self._card = card
        self._schema = input_schema(card, schema_name)
        self._remembered: dict[_Key, ChatOptions] = {}

    def read(self, body: Body) -> tuple[TextGeneration, ChatOptions]:
        """Return the task and the options of a body. Raises SchemaViolation, BadInput."""
        key = _key_of(body)
        known = None if key is None else self._remembered.get(key)
        if known is not None:
            accepted = {**known.accepted, "messages": body["messages"]}
            if self._schema.is_valid(accepted):
                return structs.replace(known.task, messages=read_messages(accepted)), known
        options = self._read(body)
        if key is not None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = structs.replace(options, task=structs.replace(options.task, messages=None))
        return options.task, options

    def _read(self, body: Body) -> ChatOptions:
        reject_unsupported(body, "chat")
        accepted, card = self._schema.coerce_and_validate(body), self._card
        task = read_chat_request(
            accepted,
            default_max_tokens=card.default_max_tokens,
            context_window=card.context_window,
            max_choices=card.max_choices,
        )
        return ChatOptions(
            task,
            {name: value for name, value in accepted.items() if name != "messages"},
            boolean(accepted, "stream", False),
            uses_legacy_functions(accepted),
            includes_usage(accepted),
            accepted.get("lora"),
        )


@lru_cache(maxsize=1024)
def chat_reader(card: ModelCard, schema_name: str) -> ChatReader:
    """Return the reader for a card and a schema."""
    return ChatReader(card, schema_name)


def parse_chat(card: ModelCard, body: Body, schema_name: str = "openai_chat") -> ParsedRequest:
    """Parse a chat body. Also used for models whose native format this is."""
    task, options = chat_reader(card, schema_name).read(body)

    def make_renderer(call: Call) -> ChatRenderer:
        return ChatRenderer(
            f"chatcmpl-{call.request_id}",
            int(call.started_at.timestamp()),
            call.requested_model,
            has_usage_chunk=options.has_usage_chunk,
            has_logprobs=task.sampling.logprobs is not None,
            is_legacy=options.is_legacy,
            num_choices=task.num_choices,
        )

    return ParsedRequest(task, options.is_stream, make_renderer, lora=options.lora)


def _parse(card: ModelCard, body: Body) -> ParsedRequest:
    require_task(card, TextGeneration)
    return parse_chat(card, body)


def _key_of(body: Body) -> _Key | None:
    """Return a key that is equal for bodies with equal options; None if the options may hold text. 1, 1.0 and true
    have different keys."""
    if type(body.get("messages")) is not list:
        return None
    key = []
    for name, value in body.items():
        kind = type(value)
        if kind in _PLAIN_TYPES or (name == "model" and kind is str):
            key.append((name, kind, value))
        elif name != "messages":
            return None
    return tuple(key)


CHAT_COMPLETIONS = Endpoint(ApiFormat.OPENAI, "Create a chat completion.", _parse, schemas=("openai_chat",))
