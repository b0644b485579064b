"""Classifiers of words: scores by hand, unknown words, cut texts, and the refusal of reranking."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import save_file

from engine.processes.zygote import Zygote
from engine.protocol.events import Failed, Finished, Result
from engine.protocol.tasks.text_classification import TextClassification
from engine.tasks.one_pass.word_classifiers import FastTextClassifier
from engine.tasks.text_classification import WholeText, WordClassifier, load
from engine.tasks.work import Refused, Work
from tests.fakes.one_pass import load_request

pytestmark = pytest.mark.asyncio(loop_scope="module")


def folder_of(folder: Path, words: list[str], labels: list[str], config: dict, **arrays: list) -> Path:
    save_file({name: np.array(values, np.float32) for name, values in arrays.items()}, folder / "model.safetensors")
    for name, content in (("words", words), ("labels", labels), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def tfidf_folder(folder: Path) -> Path:
    """A model in which "bad" counts twice as much as "good", which counts against the second label."""
    return folder_of(
        folder, ["bad", "good"], ["CLEAN", "OFFENSIVE"], {"model_type": "tfidf_linear"},
        idf=[2, 1], coefficients=[[3, -3], [1, -1]], intercepts=[0, 1], slopes=[-1, -2], offsets=[0.5, 0],
    )  # fmt: skip


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def classifier(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WordClassifier]:
    loaded = await load(load_request(zygote, tfidf_folder(tmp_path_factory.mktemp("tfidf"))))
    assert isinstance(loaded, WordClassifier)
    yield loaded
    await loaded.close()


async def scores(classifier: WordClassifier, *texts: str) -> tuple[list[float], int]:
    """Return the score of the second label for each text, and the tokens that are charged."""
    events: asyncio.Queue = asyncio.Queue()
    await classifier.start(Work(TextClassification(texts=texts), bytes(32), 1), events.put_nowait)
    found: list[float] = []
    while True:
        event = await events.get()
        assert not isinstance(event, Failed)
        if isinstance(event, Result):
            assert event.fields["labels"] == ("CLEAN", "OFFENSIVE")
            found = [row[1] for row in event.fields["scores"]]
        if isinstance(event, Finished):
            return found, event.usage.prompt_tokens


def sigmoid_mean(bad: float, good: float) -> float:
    first, second = 3 * bad - 3 * good, bad - good + 1
    return float((1 / (1 + np.exp(-first + 0.5)) + 1 / (1 + np.exp(-2 * second))) / 2)


async def test_score_is_the_mean_of_the_calibrated_models(classifier: WordClassifier):
    found, num_tokens = await scores(classifier, "BAD, bad... good!", "something else")
    length = np.hypot(4, 1)
    assert found == pytest.approx([sigmoid_mean(4 / length, 1 / length), sigmoid_mean(0, 0)], rel=1e-6)
    assert num_tokens == 5 + 4


async def test_text_beyond_the_context_is_cut(classifier: WordClassifier):
    found, num_tokens = await scores(classifier, "good " * 1000 + "bad")
    assert found == pytest.approx([sigmoid_mean(0, 1)], rel=1e-6)
    assert num_tokens == 512


async def test_reranking_and_empty_texts_are_refused(classifier: WordClassifier):
    for task in (TextClassification(texts=("a",), query="b"), TextClassification(texts=("a", ""))):
        with pytest.raises(Refused):
            await classifier.read(task)


async def test_fasttext_averages_words_and_ngrams_and_multiplies_decisions(tmp_path: Path):
    # FNV-1a of "<a" and "a>" modulo 1000, and of "é", whose bytes are extended with their sign
    hashes = [ngram_hash("<a") % 1000, ngram_hash("a>") % 1000, ngram_hash("<é") % 1000]
    folder = folder_of(
        tmp_path, ["</s>", "a"], ["x", "y", "z"], {},
        vectors=[[0, 0], [3, 0], [0, 3], [0, 6], [9, 9]], nodes=[[1, 0], [0, 1]], ngram_hashes=hashes,
        left=[[0, 1], [0, 0], [1, 0]], right=[[0, 0], [1, 1], [0, 1]],
    )  # fmt: skip
    model = FastTextClassifier(folder, {"num_buckets": 1000, "min_ngram": 2, "max_ngram": 2})
    known, unknown = (np.frombuffer(row, "<f4") for row in model.run([WholeText("a\n"), WholeText("é")]))
    first, second = (1 / (1 + np.exp(-each)) for each in (3 / 4, 9 / 4))  # sigmoids of the hidden vector [3, 9] / 4
    assert known.tolist() == pytest.approx([1 - second, first * second, (1 - first) * second], rel=1e-5)
    first = second = 1 / (1 + np.exp(-9 / 2))
    assert unknown.tolist() == pytest.approx([1 - second, first * second, (1 - first) * second], rel=1e-5)


def ngram_hash(text: str) -> int:
    found = 2166136261
    for byte in np.frombuffer(text.encode(), np.int8).tolist():
        found = ((found ^ (byte & 0xFFFFFFFF)) * 16777619) & 0xFFFFFFFF
    return found
