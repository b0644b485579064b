"""Text embeddings: tokenize texts; the worker (`one_pass/text_embeddings.py`) computes one vector for each.

A text longer than `max_tokens` is truncated; usage counts the computed tokens.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer as Vocabulary

from engine.protocol.events import Result
from engine.protocol.tasks.text_embeddings import Embeddings, TextEmbeddings
from engine.tasks.loading import LoadRequest, ModelLoadError
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.work import ModelDescription, Refused

_LONG_TEXT_CHARS = 20_000  # longer texts are tokenized in a thread
_MAX_CHARS_PER_TOKEN = 128  # text beyond max_tokens times this is not tokenized
_DEFAULT_MAX_TOKENS = 512
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "mpnet")


class TokenRow(Struct, frozen=True, array_like=True):
    """One text for the worker: token ids as int32, and True if its vector is that of the first token."""

    token_ids: bytes
    is_cls: bool

    @property
    def cost(self) -> int:
        return len(self.token_ids) // 4


class EmbeddingModelInfo(Struct, frozen=True):
    """The model's own pooling, and the number of token ids that it knows."""

    pooling: str
    vocab_size: int


async def load(request: LoadRequest) -> TextEmbedder:
    """Load an embedding model. Raises ModelLoadError."""
    tokenizer = await asyncio.to_thread(SentenceTokenizer, request.folder)
    host = await OnePassHost.start(request, "engine.tasks.one_pass.text_embeddings:EmbeddingModel")
    return TextEmbedder(host, tokenizer)


class SentenceTokenizer:
    """Encode texts as token ids with the model's own special tokens, at most `max_tokens` of them."""

    def __init__(self, model_dir: Path) -> None:
        """Raises ModelLoadError."""
        try:
            self._vocabulary = Vocabulary.from_file(str(model_dir / "tokenizer.json"))
            self.max_tokens = _max_tokens(model_dir)
        except Exception as error:  # the tokenizers library raises bare Exception for a definition it cannot build
            raise ModelLoadError(f"tokenizer files of {model_dir.name}: {error}") from error
        self._vocabulary.no_padding()
        self._vocabulary.enable_truncation(self.max_tokens)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        cut = [text[: self.max_tokens * _MAX_CHARS_PER_TOKEN] for text in texts]
        return [encoding.ids for encoding in self._vocabulary.encode_batch_fast(cut)]


class TextEmbedder(OnePassModel[TextEmbeddings]):
    """One embedding model of this node: its tokenizer and its worker."""

    def __init__(self, host: OnePassHost, tokenizer: SentenceTokenizer) -> None:
        super().__init__(host)
        self._tokenizer = tokenizer
        self._info = msgspec.convert(host.info, EmbeddingModelInfo)

    def describe(self) -> ModelDescription:
        return ModelDescription(self._tokenizer.max_tokens, "embeddings", {"input": "a warm place"})

    async def read(self, task: TextEmbeddings) -> list[TokenRow]:
        """Tokenize the texts. Raises Refused."""
        if not task.texts:
            raise Refused("invalid_input", "there is no text to embed")
        encode = self._tokenizer.encode
        is_short = sum(map(len, task.texts)) < _LONG_TEXT_CHARS
        rows = encode(task.texts) if is_short else await asyncio.to_thread(encode, task.texts)
        if not all(row and max(row) < self._info.vocab_size for row in rows):  # an invalid row would crash the worker
            raise Refused("invalid_input", "a text has no tokens, or tokens that this model does not know")
        is_cls = self._pooling(task) == "cls"
        return [TokenRow(array("i", row).tobytes(), is_cls) for row in rows]

    def render(self, task: TextEmbeddings, outputs: list[Any]) -> Result:
        """Return the vectors; each output is one as little-endian float32."""
        shape = (len(outputs), len(outputs[0]) // 4)
        return Embeddings(shape, b"".join(outputs), self._pooling(task)).to_result()

    def _pooling(self, task: TextEmbeddings) -> str:
        return task.pooling or self._info.pooling


def _max_tokens(model_dir: Path) -> int:
    """Return the model's token limit: from its sentence configuration or its tokenizer, but never more than it has
    positions, because a longer row would crash the process."""
    config = _read_json(model_dir / "config.json")
    positions = _size(config.get("max_position_embeddings"))
    if config.get("model_type") in _OFFSET_POSITIONS:  # positions start after the padding position
        positions -= int(config.get("pad_token_id") or 0) + 1
    wanted = _size(_read_json(model_dir / "sentence_bert_config.json").get("max_seq_length"))
    wanted = wanted or _size(_read_json(model_dir / "tokenizer_config.json").get("model_max_length"))
    limits = [size for size in (wanted, positions) if size > 0]
    return min(limits, default=_DEFAULT_MAX_TOKENS)


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def _size(value: object) -> int:
    """Return 0 for missing values; tokenizers without a limit report a huge number."""
    return value if isinstance(value, int) and 0 < value < 1_000_000 else 0
