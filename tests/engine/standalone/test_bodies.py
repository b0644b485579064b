"""What a body may cost the loop that everyone waits for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

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
