"""Read bodies of the standalone server as tasks, with the format of their responses. Raises BadInput.

`engine/protocol` reads the fields; this module handles everything that needs the loaded model. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.protocol.chat_completions import ChatRenderer, includes_usage, read_chat_request
from engine.protocol.fields import BadInput, boolean
from engine.protocol.sampling import MAX_CHOICES
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import uses_legacy_functions
from engine.protocol.vllm_fields import reject_unsupported
from engine.tasks.text_generation import TextGenerator

MAX_TOKEN_IDS = 1 << 20

_MANY_IDS = 10_000


@dataclass(frozen=True)
class Chat:
    """A chat completion request."""

    task: TextGeneration
    has_usage_chunk: bool
    is_legacy: bool

    def renderer(self, completion_id: str, created: int, model: str) -> ChatRenderer:
        return ChatRenderer(
            completion_id,
            created,
            model,
            num_choices=self.task.num_choices,
            has_usage_chunk=self.has_usage_chunk,
            has_logprobs=self.task.sampling.logprobs is not None,
            is_legacy=self.is_legacy,
        )


def chat(body: Mapping[str, Any], *, context_window: int) -> Chat:
    """Read a chat completion body. Without `max_tokens` a response may use all of the context that its prompt leaves.

    Raises BadInput.
    """
    reject_unsupported(body, "chat")
    task = read_chat_request(
        body, default_max_tokens=context_window, context_window=context_window, max_choices=MAX_CHOICES
    )
    return Chat(task, includes_usage(body), uses_legacy_functions(body))


async def decoded(token_ids: Sequence[int], generator: TextGenerator) -> str:
    """Return the text of token ids. Many ids are decoded in a thread, off the event loop."""
    decode = generator.tokenizer.decode
    return decode(token_ids) if len(token_ids) < _MANY_IDS else await asyncio.to_thread(decode, token_ids)


async def tokenized(body: Mapping[str, Any], generator: TextGenerator) -> Sequence[int]:
    """Return the ids of `prompt` as /v1/completions would read it (without the leading special tokens if
    `add_special_tokens` is false), or of `messages` as chat would."""
    reject_unsupported(body, "tokenize")
    is_bare = False
    if body.get("messages") is not None:
        window = generator.info.max_model_len
        one = {name: value for name, value in body.items() if name in ("messages", "tools", "tool_choice")}
        task = read_chat_request(one, default_max_tokens=1, context_window=window)
    elif isinstance(body.get("prompt"), str):
        is_bare = not boolean(body, "add_special_tokens", True)
        task = TextGeneration(prompt=body["prompt"], raw=True)
    else:
        raise BadInput("required properties at '/' are 'prompt' or 'messages'")
    found = await generator.prompt_ids(task)
    if is_bare:
        return await asyncio.to_thread(
            generator.tokenizer.encode, body["prompt"], parse_special=True, add_special_tokens=False
        )
    return found


def token_ids(value: Any, vocab_size: int) -> list[int]:
    """Return a list of ids of the model's vocabulary."""
    if not isinstance(value, list) or not all(type(token_id) is int for token_id in value):
        raise BadInput("'/tokens' must be a list of token ids")
    if len(value) > MAX_TOKEN_IDS:
        raise BadInput(f"'/tokens' must have <= {MAX_TOKEN_IDS} items")
    if not all(0 <= token_id < vocab_size for token_id in value):
        raise BadInput(f"'/tokens' must hold token ids from 0 to {vocab_size - 1}")
    return value
