"""Classifiers of texts that read words instead of tokens, in their worker process, with NumPy: fastText, and a linear
model on TF-IDF. `catalog/conversions/` writes their folders: `model.safetensors`, `words.json` and `labels.json`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from engine.tasks.text_classification import ClassifierInfo, WholeText

FASTTEXT, TFIDF = "fasttext", "tfidf_linear"

_END_OF_LINE = "</s>"
_SPACE = re.compile(r"[ \n\r\t\v\f\0]+")
_TOKEN = re.compile(r"\b\w\w+\b")  # as in scikit-learn's TfidfVectorizer
_FNV_START, _FNV_FACTOR, _32_BITS = 2166136261, 16777619, (1 << 32) - 1


class _WordClassifier:
    """Base of both: reads the folder. A `WorkerModel`."""

    item_type = WholeText

    def __init__(self, model_dir: Path) -> None:
        self._arrays = load_file(model_dir / "model.safetensors")
        words = json.loads((model_dir / "words.json").read_text("utf-8"))
        self._ids = {word: number for number, word in enumerate(words)}
        labels = json.loads((model_dir / "labels.json").read_text("utf-8"))
        self.info = ClassifierInfo(tuple(map(str, labels)), vocab_size=len(words))

    def warm_up(self) -> None:
        self.run([WholeText("a warm place")])

    def run(self, items: list[WholeText]) -> list[bytes]:
        """Return the scores of each text as little-endian float32."""
        return [self._scores(item.text).astype("<f4").tobytes() for item in items]

    def _scores(self, text: str) -> np.ndarray:
        """Return one score for each label. A text without known words has the scores of an empty text."""
        raise NotImplementedError


class TfidfClassifier(_WordClassifier):
    """The probability of the second of two labels: the mean of several linear models on TF-IDF, each with its own
    sigmoid. Arrays: `idf` [V], `coefficients` [M, V], `intercepts`, `slopes` and `offsets` [M]."""

    def _scores(self, text: str) -> np.ndarray:
        counts = Counter(self._ids[word] for word in _TOKEN.findall(text.lower()) if word in self._ids)
        numbers = np.fromiter(counts.keys(), np.int64, len(counts))
        weights = np.fromiter(counts.values(), np.float64, len(counts)) * self._arrays["idf"][numbers]
        weights /= max(float(np.linalg.norm(weights)), 1e-12)
        margins = self._arrays["coefficients"][:, numbers] @ weights + self._arrays["intercepts"]  # [M]
        second = np.mean(1 / (1 + np.exp(self._arrays["slopes"] * margins + self._arrays["offsets"])))
        return np.array([1 - second, second])


class FastTextClassifier(_WordClassifier):
    """fastText with hierarchical softmax: the mean vector of words and character n-grams, then a tree of decisions.

    Arrays: `vectors` [words + n-grams, D], `nodes` [N, D], `right` and `left` [labels, N], 1 where the path to a label
    takes that branch, and `ngram_hashes` in the order of their vectors.
    """

    def __init__(self, model_dir: Path, config: dict[str, Any]) -> None:
        super().__init__(model_dir)
        self._num_buckets = int(config["num_buckets"])
        self._min, self._max = int(config["min_ngram"]), int(config["max_ngram"])
        hashes = self._arrays["ngram_hashes"].astype(np.int64).tolist()
        self._ngram_ids = {hash_: len(self._ids) + number for number, hash_ in enumerate(hashes)}

    def _scores(self, text: str) -> np.ndarray:
        numbers = [number for word in _SPACE.split(text) if word for number in self._features(word)]
        numbers += [self._ids[_END_OF_LINE]] if _END_OF_LINE in self._ids else []
        hidden = self._arrays["vectors"][numbers].mean(axis=0)  # [D]
        margins = self._arrays["nodes"] @ hidden  # [N]
        to_right, to_left = -np.logaddexp(0, -margins), -np.logaddexp(0, margins)
        scores: np.ndarray = np.exp(self._arrays["right"] @ to_right + self._arrays["left"] @ to_left)
        return scores

    def _features(self, word: str) -> list[int]:
        """Return the vectors of a word: its own if it is known, and those of its n-grams."""
        found = [self._ids[word]] if word in self._ids else []
        if word == _END_OF_LINE:
            return found
        characters = [character.encode("utf-8", "surrogatepass") for character in f"<{word}>"]
        for start in range(len(characters)):
            hash_ = _FNV_START
            for length, character in enumerate(characters[start : start + self._max], 1):
                for byte in character:  # fastText extends the sign of bytes
                    hash_ = ((hash_ ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * _FNV_FACTOR) & _32_BITS
                is_edge = length == 1 and start in (0, len(characters) - 1)
                number = self._ngram_ids.get(hash_ % self._num_buckets)
                if length >= self._min and not is_edge and number is not None:
                    found.append(number)
        return found
