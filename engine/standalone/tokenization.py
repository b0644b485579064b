"""Bodies of /tokenize and /detokenize, as vLLM has them. Raises BadInput. Knows no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from engine.protocol.chat_completions import read_chat_request
from engine.protocol.fields import BadInput, boolean
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.vllm_fields import reject_unsupported
from engine.tasks.text_generation import TextGenerator

MAX_TOKEN_IDS = 1 << 20

_LONG_TOKEN_IDS = 10_000  # more token ids are decoded in a thread, off the event loop


async def tokenize(body: Mapping[str, Any], generator: TextGenerator) -> Sequence[int]:
    """Return the token ids of `prompt` as /v1/completions would read it (without the leading special tokens if
    `add_special_tokens` is false), or of `messages` as chat would."""
    reject_unsupported(body, "tokenize")
    if body.get("messages") is not None:
        window = generator.info.max_model_len
        chat_body = {name: value for name, value in body.items() if name in ("messages", "tools", "tool_choice")}
        return await generator.prompt_ids(read_chat_request(chat_body, default_max_tokens=1, context_window=window))
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise BadInput("required properties at '/' are 'prompt' or 'messages'")
    token_ids = await generator.prompt_ids(TextGeneration(prompt=prompt, raw=True))
    if boolean(body, "add_special_tokens", True):
        return token_ids
    encode = generator.tokenizer.encode
    return await asyncio.to_thread(encode, prompt, parse_special=True, add_special_tokens=False)


async def detokenize(body: Mapping[str, Any], generator: TextGenerator) -> str:
    """Return the text of `tokens`."""
    token_ids, vocab_size = body.get("tokens"), generator.info.vocab_size
    if not isinstance(token_ids, list) or not all(type(token_id) is int for token_id in token_ids):
        raise BadInput("'/tokens' must be a list of token ids")
    if len(token_ids) > MAX_TOKEN_IDS:
        raise BadInput(f"'/tokens' must have <= {MAX_TOKEN_IDS} items")
    if not all(0 <= token_id < vocab_size for token_id in token_ids):
        raise BadInput(f"'/tokens' must hold token ids from 0 to {vocab_size - 1}")
    decode = generator.tokenizer.decode
    return decode(token_ids) if len(token_ids) < _LONG_TOKEN_IDS else await asyncio.to_thread(decode, token_ids)
