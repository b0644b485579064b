"""Contexts of a query: read them from a body, and render their scores. Shared by the tasks whose models score contexts.

The result of such a call has the field `scores`, with one row for each context whose first value is the score.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.protocol.fields import BadInput, items, text
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode

MAX_CONTEXTS = 1000
MAX_CONTEXT_CHARACTERS = 1_000_000


def contexts(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the texts of 1 to MAX_CONTEXTS contexts, which are strings or objects with a `text`. Raises BadInput."""
    found = items(body.get(name), f"/{name}", maximum=MAX_CONTEXTS)
    if not found:
        raise BadInput(f"'/{name}' must have >= 1 items")
    texts = []
    for number, each in enumerate(found):
        pointer = f"/{name}/{number}"
        value = each
        if isinstance(each, dict):
            pointer += "/text"
            value = each.get("text")
        texts.append(text(value, pointer, max_characters=MAX_CONTEXT_CHARACTERS))
        if not texts[-1].strip():
            raise BadInput(f"'{pointer}' must not be empty")
    return tuple(texts)


def ranking(outcome: Outcome, top_k: int = 0) -> list[tuple[int, float]]:
    """Return (position, score) of the `top_k` contexts with the highest scores, best first; 0 returns all."""
    assert outcome.result is not None
    scores = [float(row[0]) for row in outcome.result.fields["scores"]]
    order = sorted(range(len(scores)), key=lambda number: -scores[number])
    return [(number, scores[number]) for number in (order[:top_k] if top_k else order)]


class RankedContexts(Renderer):
    """The native response to a query: `{response: [{id, score}]}`, best first. The id is the context's position."""

    def __init__(self, top_k: int = 0) -> None:
        self._top_k = top_k

    def whole(self, outcome: Outcome) -> bytes:
        return encode({"response": [{"id": id_, "score": score} for id_, score in ranking(outcome, self._top_k)]})
