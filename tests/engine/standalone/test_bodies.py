"""What a body may cost the loop that everyone waits for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine.protocol.completions import completions
from engine.standalone import bodies


class Decoder:
    """A tokenizer that notes which thread decodes how many ids."""

    def __init__(self) -> None:
        self.decoded: list[tuple[int, bool]] = []

    def decode(self, token_ids: Sequence[int]) -> str:
        self.decoded.append((len(token_ids), threading.current_thread() is threading.main_thread()))
        return "x" * len(token_ids)


@pytest.fixture
def generator() -> Any:
    return SimpleNamespace(tokenizer=Decoder(), info=SimpleNamespace(max_model_len=20_000))


async def test_many_ids_are_decoded_in_a_thread(generator: Any):
    assert await bodies.decoded([1] * 10, generator) == "x" * 10
    assert await bodies.decoded([1] * 10_000, generator) == "x" * 10_000
    assert generator.tokenizer.decoded == [(10, True), (10_000, False)]


@pytest.mark.parametrize(
    ("body", "echoes", "is_told"),
    [
        ({"prompt": ["a", "b"], "echo": True}, ["a", "b"], False),
        ({"prompt": "a", "echo": True, "logprobs": 0}, [""], True),
        ({"prompt": "a", "echo": True, "max_tokens": 0}, [""], True),
        ({"prompt": [1, 2], "echo": True}, [""], True),
        ({"prompt": [1, 2], "logprobs": 1}, [""], False),
    ],
)
def test_a_prompt_is_echoed_where_its_text_is_known_or_by_who_has_the_model(
    body: dict[str, Any], echoes: list[str], is_told: bool
):
    asked = completions(body, context_window=20_000, vocab_size=100)
    assert bodies.echoes(asked) == echoes
    assert {task.echoes for task in asked.tasks()} == {is_told}
