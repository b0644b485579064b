"""`POST A/ai/v1/rerank`: documents in the order of their relevance to a query, in the format of Cohere, Jina and vLLM.

Rerankers and embedding models serve this route. An embedding model scores a document by the cosine of its vector and
the vector of the query.
"""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.contexts import contexts, ranking
from engine.protocol.tasks.text_classification import TextClassification
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from gateway.call import Call, Endpoint, ParsedRequest
from gateway.model_names import require_task


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    if card.task_slug != TextEmbeddings.slug:
        require_task(card, TextClassification)
    accepted = input_schema(card, "openai_rerank").coerce_and_validate(body)
    documents, query = contexts(accepted, "documents"), accepted["query"]
    task_type = TextEmbeddings if card.task_slug == TextEmbeddings.slug else TextClassification
    shown = documents if accepted.get("return_documents") else ()
    top_n: int = accepted.get("top_n", 0)
    return ParsedRequest(
        task_type(texts=documents, query=query), False, lambda call: RerankRenderer(call, top_n, shown)
    )


class RerankRenderer(Renderer):
    """The `top_n` best documents, all if 0; with their texts if `documents` is not empty."""

    def __init__(self, call: Call, top_n: int, documents: tuple[str, ...]) -> None:
        self._call = call
        self._top_n = top_n
        self._documents = documents

    def whole(self, outcome: Outcome) -> bytes:
        results = [
            {"index": index, "relevance_score": score}
            | ({"document": {"text": self._documents[index]}} if self._documents else {})
            for index, score in ranking(outcome, self._top_n)
        ]
        num_tokens = outcome.finished.usage.prompt_tokens
        return encode(
            {
                "id": f"rerank-{self._call.request_id}",
                "model": self._call.requested_model,
                "results": results,
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            }
        )


RERANK = Endpoint(ApiFormat.OPENAI, "Rank documents by their relevance to a query.", _parse, schemas=("openai_rerank",))
