"""Scores of labels and contexts equal those of `transformers`, for each supported architecture and in every batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Finished, Result
from engine.protocol.tasks.text_classification import TextClassification
from engine.tasks.loading import ModelLoadError
from engine.tasks.one_pass.text_classification import load as load_in_worker
from engine.tasks.one_pass.transformers_models import UnsupportedModel
from engine.tasks.text_classification import ClassifiedRow, TextClassifier, load
from engine.tasks.work import Refused, Work
from tests.fakes.one_pass import load_request
from tests.fakes.tiny_models import tiny_classifier
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LABELS = ("NEGATIVE", "POSITIVE")
TEXTS = ("it was a good film", "bad", "what is the place " * 10, "the man is eating food in the rain and the sun")
QUERY = "where is a warm place"


def reference(folder: Path, texts: tuple[str, ...], query: str = "") -> np.ndarray:
    """Return the logits that `transformers` computes for each text alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    uses_types = getattr(model.config, "type_vocab_size", 0) > 1
    rows = []
    for text in texts:
        pair = (query, text) if query else (text,)
        inputs = tokenizer(*pair, truncation=True, max_length=64, return_tensors="pt", return_token_type_ids=uses_types)
        with torch.inference_mode():
            rows.append(model(**inputs).logits[0])
    return torch.stack(rows)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def classifier(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TextClassifier]:
    folder = tiny_classifier(tmp_path_factory.mktemp("classifier"), "bert", LABELS)
    classifier = await load(load_request(zygote, folder))
    classifier.folder = folder  # type: ignore[attr-defined]
    yield classifier
    await classifier.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def reranker(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TextClassifier]:
    folder = tiny_classifier(tmp_path_factory.mktemp("reranker"), "bert", ("LABEL_0",))
    reranker = await load(load_request(zygote, folder))
    reranker.folder = folder  # type: ignore[attr-defined]
    yield reranker
    await reranker.close()


async def classify(classifier: TextClassifier, *texts: str, query: str = "") -> tuple[dict[str, Any], Finished]:
    """Return the fields of the result, and the last event."""
    events: list[Event] = []
    await classifier.start(Work(TextClassification(texts=texts, query=query), b"", 0), events.append)
    await wait_until(lambda: bool(events) and isinstance(events[-1], Finished))
    _, result, finished = events
    assert isinstance(result, Result)
    assert isinstance(finished, Finished)
    return result.fields, finished


async def test_scores_of_labels_equal_the_reference(classifier: TextClassifier):
    expected = reference(classifier.folder, TEXTS).softmax(-1).numpy()
    fields, _ = await classify(classifier, *TEXTS)
    assert tuple(fields["labels"]) == LABELS
    assert np.abs(np.array(fields["scores"]) - expected).max() < 2e-6
    assert np.ptp(expected[:, 0]) > 0.1, "the texts have different scores"


async def test_scores_of_contexts_equal_the_reference(reranker: TextClassifier):
    expected = reference(reranker.folder, TEXTS, QUERY).sigmoid().numpy()
    fields, _ = await classify(reranker, *TEXTS, query=QUERY)
    assert fields["labels"] == ()
    assert np.abs(np.array(fields["scores"]) - expected).max() < 2e-6


async def test_calls_that_arrive_together_share_batches(classifier: TextClassifier):
    before = classifier.status().num_steps
    alone = [(await classify(classifier, text))[0]["scores"][0] for text in TEXTS]
    assert classifier.status().num_steps - before == len(TEXTS)
    before = classifier.status().num_steps
    together = await asyncio.gather(*(classify(classifier, text) for text in TEXTS * 5))
    assert classifier.status().num_steps - before <= 2
    scores = np.array([fields["scores"][0] for fields, _ in together])
    assert np.abs(scores - np.array(alone * 5)).max() < 2e-6


async def test_usage_counts_query_and_context_for_each_pair(reranker: TextClassifier):
    _, finished = await classify(reranker, "a man", "rain " * 500, query="who is it")
    assert finished.usage.prompt_tokens == (3 + 2 + 3) + 64


async def test_query_for_a_model_with_two_labels_is_refused(classifier: TextClassifier):
    with pytest.raises(Refused, match="2 labels"):
        await classify(classifier, "a man", query="who is it")


# ── architectures, without a process ──


def rows_of(folder: Path, texts: tuple[str, ...]) -> list[ClassifiedRow]:
    encoded = AutoTokenizer.from_pretrained(folder)(list(texts), truncation=True, max_length=64)
    return [ClassifiedRow(np.array(ids, "<i4").tobytes(), bytes(len(ids))) for ids in encoded["input_ids"]]


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("bert", {}),
        ("roberta", {}),
        ("xlm-roberta", {}),
        ("distilbert", {}),
        ("deberta-v2", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}),
        ("electra", {"embedding_size": 32}),
    ],
)
async def test_each_architecture_equals_the_reference(tmp_path: Path, model_type: str, options: dict[str, Any]):
    folder = tiny_classifier(tmp_path, model_type, ("a", "b", "c"), **options)
    model = load_in_worker(folder, "cpu")
    scores = np.array([np.frombuffer(row, "<f4") for row in model.run(rows_of(folder, TEXTS))])
    assert np.abs(scores - reference(folder, TEXTS).softmax(-1).numpy()).max() < 2e-6


async def test_labels_that_do_not_exclude_each_other_have_independent_scores(tmp_path: Path):
    folder = tiny_classifier(tmp_path, "bert", ("rude", "loud"), problem_type="multi_label_classification")
    scores = np.frombuffer(load_in_worker(folder, "cpu").run(rows_of(folder, TEXTS[:1]))[0], "<f4")
    assert np.abs(scores - reference(folder, TEXTS[:1]).sigmoid().numpy()).max() < 2e-6


async def test_linear_head_on_sentence_vectors_equals_the_reference(tmp_path: Path):
    folder = tiny_classifier(tmp_path, "bert", LABELS)
    config = json.loads((folder / "config.json").read_text())
    weight, bias = torch.randn(2, 32), torch.randn(2)
    config["sentence_head"] = {"weight": weight.tolist(), "bias": bias.tolist()}
    (folder / "config.json").write_text(json.dumps(config))
    inputs = AutoTokenizer.from_pretrained(folder)(TEXTS[0], return_tensors="pt")
    with torch.inference_mode():
        hidden = AutoModelForSequenceClassification.from_pretrained(folder).eval().bert(**inputs).last_hidden_state[0]
    vector = torch.nn.functional.normalize(hidden.mean(0), dim=0)
    scores = np.frombuffer(load_in_worker(folder, "cpu").run(rows_of(folder, TEXTS[:1]))[0], "<f4")
    assert np.abs(scores - (weight @ vector + bias).softmax(-1).numpy()).max() < 2e-6


async def test_model_without_a_classification_head_does_not_load(tmp_path: Path):
    folder = tiny_classifier(tmp_path, "bert", LABELS)
    AutoModelForSequenceClassification.from_pretrained(folder).bert.save_pretrained(folder)
    with pytest.raises(ValueError, match="no weights for classifier"):
        load_in_worker(folder, "cpu")


@pytest.mark.parametrize("change", [{"auto_map": {"AutoModel": "code.py"}}, {"model_type": "llama"}])
async def test_model_with_code_or_of_another_type_does_not_load(tmp_path: Path, change: dict[str, Any]):
    folder = tiny_classifier(tmp_path, "bert", LABELS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnsupportedModel):
        load_in_worker(folder, "cpu")


async def test_folder_without_a_tokenizer_does_not_load(zygote: Zygote, tmp_path: Path):
    with pytest.raises(ModelLoadError, match="tokenizer"):
        await load(load_request(zygote, tmp_path))
