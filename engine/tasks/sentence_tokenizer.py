"""Tokenize texts, or pairs of texts, with the tokenizer of an encoder model such as BERT."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Vocabulary

from engine.tasks.loading import ModelLoadError

LONG_TEXT_CHARACTERS = 20_000  # longer texts are tokenized in a thread
_MAX_CHARS_PER_TOKEN = 128  # text beyond max_tokens times this is not tokenized
_DEFAULT_MAX_TOKENS = 512
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet")


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

    def encode_pairs(self, first: str, seconds: Sequence[str]) -> list[Encoding]:
        """Return the encoding of each pair of `first` and one of `seconds`. The longer text of a pair is truncated."""
        limit = self.max_tokens * _MAX_CHARS_PER_TOKEN
        return self._vocabulary.encode_batch_fast([(first[:limit], second[:limit]) for second in seconds])


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
