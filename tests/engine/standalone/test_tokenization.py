"""Decoding many token ids does not block the event loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine.standalone.tokenization import detokenize


class Decoder:
    """A tokenizer that records how many ids it decodes, and whether the main thread does it."""

    def __init__(self) -> None:
        self.decoded: list[tuple[int, bool]] = []

    def decode(self, token_ids: Sequence[int]) -> str:
        self.decoded.append((len(token_ids), threading.current_thread() is threading.main_thread()))
        return "x" * len(token_ids)


@pytest.fixture
def generator() -> Any:
    return SimpleNamespace(tokenizer=Decoder(), info=SimpleNamespace(vocab_size=2))


async def test_many_ids_are_decoded_in_a_thread(generator: Any):
    for count in (10, 10_000):
        assert await detokenize({"tokens": [1] * count}, generator) == "x" * count
    assert generator.tokenizer.decoded == [(10, True), (10_000, False)]
