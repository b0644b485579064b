"""OpenAI's embeddings: read a request body and render the list of embeddings. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal

from engine.protocol.fields import BadInput, texts
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.text_embeddings import MAX_TEXTS, Embeddings, TextEmbeddings

Encoding = Literal["float", "base64"]


def read_embeddings_request(body: Mapping[str, Any]) -> tuple[TextEmbeddings, Encoding]:
    """Return the task of an embeddings body, and the encoding of its response. Raises BadInput."""
    encoding = body.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise BadInput("'/encoding_format' must be one of float, base64")
    task = TextEmbeddings(texts=texts(body, "input", maximum=MAX_TEXTS))
    return task, "base64" if encoding == "base64" else "float"


class EmbeddingsRenderer(Renderer):
    """OpenAI's list of embeddings; base64 encodes little-endian float32."""

    def __init__(self, model: str, encoding: Encoding) -> None:
        self._model = model
        self._encoding = encoding

    def whole(self, outcome: Outcome) -> bytes:
        embeddings = Embeddings.of(outcome)
        rows: list[Any]
        if self._encoding == "base64":
            size, data = embeddings.shape[1] * 4, embeddings.data
            rows = [base64.b64encode(data[at : at + size]).decode() for at in range(0, len(data), size)]
        else:
            rows = list(embeddings.rows())
        prompt_tokens = outcome.finished.usage.prompt_tokens
        return encode(
            {
                "object": "list",
                "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
                "model": self._model,
                "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
            }
        )
