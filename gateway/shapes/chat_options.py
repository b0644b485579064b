"""What a chat body asks for beside its messages: read once for all bodies that ask for the same.

Programs send the same few options with every call; checking each anew cost more than anything else that is done with a
body. Remembered is what only numbers, switches and the model's name say: nothing that a person may have written, and
nothing that failed. The messages, and the body as a whole, are held to the schema every time. Pure but for that memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import Struct, structs

from catalog.card import ModelCard
from catalog.schemas import RequestFormat, input_schema
from engine.protocol import openai, tools
from engine.protocol.fields import boolean
from engine.protocol.messages import chat_messages
from engine.protocol.tasks import TextGeneration
from engine.protocol.vllm_fields import refuse_unsupported

MAX_REMEMBERED = 256  # of one card and face

_PLAIN = frozenset({int, float, bool, type(None)})

Body = dict[str, Any]
_Key = tuple[tuple[str, type, Any], ...]


class ChatOptions(Struct, frozen=True):
    """Everything but the messages: `task` lacks them, or has those of the body it was read from; `admitted` are the
    options as the schema let them in."""

    task: TextGeneration
    admitted: Body
    is_stream: bool
    is_legacy: bool
    has_usage_chunk: bool
    lora: str | None


class ChatReader:
    """Bodies for one card and face."""

    def __init__(self, card: ModelCard, face: RequestFormat) -> None:
        self._card = card
        self._schema = input_schema(card, face)
        self._known: dict[_Key, ChatOptions] = {}

    def read(self, body: Body) -> tuple[TextGeneration, ChatOptions]:
        """The task, and what else the body asks for. Raises SchemaViolation, BadInput."""
        key = _key_of(body)
        known = None if key is None else self._known.get(key)
        if known is not None:
            admitted = {**known.admitted, "messages": body["messages"]}
            if self._schema.is_valid(admitted):
                return structs.replace(known.task, messages=chat_messages(admitted)), known
        options = self._read(body)
        if key is not None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[key] = structs.replace(options, task=structs.replace(options.task, messages=None))
        return options.task, options

    def _read(self, body: Body) -> ChatOptions:
        refuse_unsupported(body, "chat")
        admitted, card = self._schema.coerce_and_validate(body), self._card
        task = openai.text_generation(
            admitted,
            default_max_tokens=card.default_max_tokens,
            context_window=card.context_window,
            max_choices=card.max_choices,
        )
        return ChatOptions(
            task,
            {name: value for name, value in admitted.items() if name != "messages"},
            boolean(admitted, "stream", False),
            tools.is_legacy(admitted),
            openai.wants_usage_chunk(admitted),
            admitted.get("lora"),
        )


@lru_cache(maxsize=1024)
def chat_reader(card: ModelCard, face: RequestFormat) -> ChatReader:
    """The same reader for the same card and face."""
    return ChatReader(card, face)


def _key_of(body: Body) -> _Key | None:
    """What bodies that ask for the same have in common; None for one that is read anew. 1, 1.0 and true differ."""
    if type(body.get("messages")) is not list:
        return None
    key = []
    for name, value in body.items():
        kind = type(value)
        if kind in _PLAIN or (name == "model" and kind is str):
            key.append((name, kind, value))
        elif name != "messages":
            return None
    return tuple(key)
