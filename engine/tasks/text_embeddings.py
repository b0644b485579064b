"""Text embeddings: texts -> token ids -> vectors of the worker -> one Result.

A text longer than `max_tokens` is truncated; usage counts the computed tokens.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Vocabulary

from engine.embeddings.single_pass import Overloaded, Row, SinglePass, WorkerGone
from engine.processes.zygote import Zygote
from engine.protocol.events import Failed, Finished, Started, Usage
from engine.protocol.tasks.text_embeddings import Embeddings, TextEmbeddings
from engine.report import EngineStatus
from engine.tasks.work import Emit, Refused, Work
from engine.text.files import TokenizerUnusable

logger = logging.getLogger(__name__)

_LONG_TEXT_CHARS = 20_000  # longer texts are tokenized in a thread
_MAX_CHARS_PER_TOKEN = 128  # text beyond max_tokens times this is not tokenized
_DEFAULT_MAX_TOKENS = 512
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "mpnet")


class SentenceTokenizer:
    """Encode texts as rows of ids with the model's own special tokens, at most `max_tokens` long."""

    def __init__(self, model_dir: Path) -> None:
        """Raises TokenizerUnusable."""
        try:
            self._vocabulary = Vocabulary.from_file(str(model_dir / "tokenizer.json"))
            self.max_tokens = _max_tokens(model_dir)
        except Exception as error:  # the tokenizers library raises bare Exception for a definition it cannot build
            raise TokenizerUnusable(f"tokenizer files of {model_dir.name}: {error}") from error
        self._vocabulary.no_padding()
        self._vocabulary.enable_truncation(self.max_tokens)

    def encode(self, texts: Sequence[str]) -> list[Row]:
        """Return one row per text."""
        cut = [text[: self.max_tokens * _MAX_CHARS_PER_TOKEN] for text in texts]
        return [np.array(encoding.ids, dtype=np.int32) for encoding in self._vocabulary.encode_batch_fast(cut)]


class TextEmbedder:
    """One embedding model of this node: its tokenizer and its worker."""

    def __init__(self, worker: SinglePass, tokenizer: SentenceTokenizer) -> None:
        self._worker = worker
        self._tokenizer = tokenizer

    @classmethod
    async def load(
        cls, zygote: Zygote, model_dir: Path, device: str, num_threads: int, on_exit: Callable[[str], None]
    ) -> TextEmbedder:
        """Raises TokenizerUnusable, WorkerLoadError, ZygoteError."""
        tokenizer = await asyncio.to_thread(SentenceTokenizer, model_dir)
        return cls(await SinglePass.start(zygote, model_dir, device, num_threads, on_exit), tokenizer)

    @property
    def is_alive(self) -> bool:
        return self._worker.is_alive

    @property
    def max_tokens(self) -> int:
        """Number of tokens of a text that the model reads."""
        return self._tokenizer.max_tokens

    def status(self) -> EngineStatus:
        return self._worker.status()

    async def close(self) -> None:
        await self._worker.close()

    async def start(self, work: Work, emit: Emit) -> Embedding:
        """Tokenize the texts and queue them. Raises Refused."""
        assert isinstance(work.task, TextEmbeddings)
        texts = work.task.texts
        if not texts:
            raise Refused("invalid_input", "there is no text to embed")
        if sum(map(len, texts)) < _LONG_TEXT_CHARS:
            rows = self._tokenizer.encode(texts)
        else:
            rows = await asyncio.to_thread(self._tokenizer.encode, texts)
        vocab_size = self._worker.info.vocab_size
        if not all(len(row) and row.max() < vocab_size for row in rows):  # an invalid row would crash the worker
            raise Refused("invalid_input", "a text has no tokens, or tokens that this model does not know")
        return Embedding(self._worker, rows, work.task.pooling or self._worker.info.pooling, emit)


class Embedding:
    """The rows of one running call, created by `TextEmbedder.start`."""

    def __init__(self, worker: SinglePass, rows: list[Row], pooling: str, emit: Emit) -> None:
        self._worker = worker
        self._rows = rows
        self._pooling = pooling
        self._emit = emit
        self._job = asyncio.create_task(self._run())

    def cancel(self) -> Usage:
        """Drop the rows that are not being computed. Rows that are being computed are not counted."""
        self._job.cancel()
        return Usage()

    async def _run(self) -> None:
        try:
            vectors, device_us = await self._worker.run(self._rows, is_cls=self._pooling == "cls")
            self._emit_result(vectors, device_us)
        except WorkerGone:
            self._emit(Failed("internal", "the process that ran the model ended", is_retryable=True, num_crashes=1))
        except Overloaded as error:
            self._emit(Failed("out_of_capacity", str(error), is_retryable=True))
        except Exception as error:  # no other code would end this call
            logger.exception("texts could not be embedded: %s", type(error).__name__)
            self._emit(Failed("internal", "the node could not do this; its log says why"))

    def _emit_result(self, vectors: NDArray[np.float32], device_us: int) -> None:
        num_tokens = sum(map(len, self._rows))
        shape = (vectors.shape[0], vectors.shape[1])
        self._emit(Started(num_tokens))
        self._emit(Embeddings(shape, vectors.astype("<f4", copy=False).tobytes(), self._pooling).to_result())
        self._emit(Finished("stop", Usage(prompt_tokens=num_tokens, device_us=device_us)))


def _max_tokens(model_dir: Path) -> int:
    """Return the model's token limit: from its sentence configuration or its tokenizer, but never more than it has
    positions, because a longer row would crash the process."""
    config = _facts(model_dir / "config.json")
    positions = _size(config.get("max_position_embeddings"))
    if config.get("model_type") in _OFFSET_POSITIONS:  # positions start after the padding position
        positions -= int(config.get("pad_token_id") or 0) + 1
    wanted = _size(_facts(model_dir / "sentence_bert_config.json").get("max_seq_length"))
    wanted = wanted or _size(_facts(model_dir / "tokenizer_config.json").get("model_max_length"))
    limits = [size for size in (wanted, positions) if size > 0]
    return min(limits, default=_DEFAULT_MAX_TOKENS)


def _facts(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return facts


def _size(value: object) -> int:
    """Return 0 for missing values; tokenizers without a limit report a huge number."""
    return value if isinstance(value, int) and 0 < value < 1_000_000 else 0
