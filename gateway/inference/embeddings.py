"""`POST A/ai/v1/embeddings`: OpenAI's embeddings, as floats or base64."""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.embeddings import EmbeddingsRenderer, read_embeddings_request
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from gateway.call import Endpoint, ParsedRequest
from gateway.model_names import require_task


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextEmbeddings)
    accepted = input_schema(card, "openai_embeddings").coerce_and_validate(body)
    task, encoding = read_embeddings_request(accepted)
    return ParsedRequest(task, False, lambda call: EmbeddingsRenderer(call.requested_model, encoding))


EMBEDDINGS = Endpoint(ApiFormat.OPENAI, "Create embeddings of texts.", _parse, schemas=("openai_embeddings",))
