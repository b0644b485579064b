"""`POST A/ai/v1/moderations`: OpenAI's moderation of texts, by any text classification model.

The categories are the model's labels without the neutral ones, such as `CLEAN`. A text is flagged if the score of a
category is at least FLAGGED_SCORE. The property `neutral_labels` of a card replaces NEUTRAL_LABELS.
"""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.fields import BadInput, items, text
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.text_classification import MAX_TEXT_CHARACTERS, Classification, TextClassification
from gateway.call import Call, Endpoint, ParsedRequest
from gateway.errors import Reason, Refusal
from gateway.model_names import require_task

FLAGGED_SCORE = 0.5
NEUTRAL_LABELS = "ok,safe,clean,neutral,normal,none,non-toxic,non_toxic,not_toxic,non-offensive,not-offensive,sfw"
_MAX_TEXTS = 1000


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextClassification)
    if card.schema == "reranker":
        raise Refusal(Reason.INPUT_INVALID, f"{card.name} is a reranker, which has no labels")
    accepted = input_schema(card, "openai_moderations").coerce_and_validate(body)
    task = TextClassification(texts=_texts(accepted["input"]))
    neutral = card.properties.get("neutral_labels", NEUTRAL_LABELS)
    names = frozenset(name.strip().lower() for name in neutral.split(","))
    return ParsedRequest(task, False, lambda call: ModerationRenderer(call, names))


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts of OpenAI's `input`. Raises BadInput."""
    if isinstance(value, str):
        return (text(value, "/input", max_characters=MAX_TEXT_CHARACTERS),)
    return tuple(
        _text(each, f"/input/{number}") for number, each in enumerate(items(value, "/input", maximum=_MAX_TEXTS))
    )


def _text(value: Any, pointer: str) -> str:
    if isinstance(value, dict):
        if value.get("type") != "text":
            raise BadInput(f"'{pointer}/type' must be text: this model takes no images")
        value, pointer = value.get("text"), f"{pointer}/text"
    found = text(value, pointer, max_characters=MAX_TEXT_CHARACTERS)
    if not found.strip():
        raise BadInput(f"'{pointer}' must not be empty")
    return found


class ModerationRenderer(Renderer):
    """One result for each text. `neutral` are labels, in lower case, that are no categories."""

    def __init__(self, call: Call, neutral: frozenset[str]) -> None:
        self._call = call
        self._neutral = neutral

    def whole(self, outcome: Outcome) -> bytes:
        found = Classification.of(outcome)
        results = [self._result(dict(zip(found.labels, row, strict=True))) for row in found.scores]
        return encode({"id": f"modr-{self._call.request_id}", "model": self._call.requested_model, "results": results})

    def _result(self, scores: dict[str, float]) -> dict[str, Any]:
        of_categories = {label: score for label, score in scores.items() if label.lower() not in self._neutral}
        categories = {label: score >= FLAGGED_SCORE for label, score in of_categories.items()}
        return {
            "flagged": any(categories.values()),
            "categories": categories,
            "category_scores": of_categories,
            "category_applied_input_types": {label: ["text"] for label in of_categories},
        }


MODERATIONS = Endpoint(ApiFormat.OPENAI, "Find texts with unwanted content.", _parse, schemas=("openai_moderations",))
