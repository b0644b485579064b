"""Native bodies -> typed tasks: the legacy shape of text generation, and embeddings. Pure.

The twin of `engine/protocol/openai.py`, whose readers of common fields it uses; bodies have already been admitted by
the catalog's schema. How the answers look is in `native.py` and `embeddings.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.protocol import openai
from engine.protocol.fields import BadInput, boolean
from engine.protocol.output_format import output_constraint
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration


def text_generation(body: Mapping[str, Any], *, default_max_tokens: int, context_window: int) -> TextGeneration:
    """`messages` with tools, or `prompt` with an optional `raw`; either with an output format. Raises BadInput."""
    sampling = openai.sampling(body, default_max_tokens=default_max_tokens, context_window=context_window)
    if body.get("messages") is not None:
        return openai.conversation(body, sampling)
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise BadInput("required properties at '/' are 'prompt'")
    is_raw = boolean(body, "raw", False)
    return TextGeneration(prompt=prompt, raw=is_raw, sampling=sampling, constraint=output_constraint(body))


def text_embeddings(body: Mapping[str, Any]) -> TextEmbeddings:
    """`text` as one string or a list, and an optional `pooling`. Raises BadInput."""
    pooling = body.get("pooling")
    if pooling not in (None, "mean", "cls"):
        raise BadInput("'/pooling' must be one of mean, cls")
    return TextEmbeddings(texts=openai.texts(body, "text"), pooling=pooling)
