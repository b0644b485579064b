"""Conversion of a fastText classifier (`.ftz`: quantized, hierarchical softmax) to safetensors.

The format is that of fastText 0.9: arguments, dictionary, quantized input matrix, output matrix.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

from catalog.conversions.tensorflow_js import save
from catalog.errors import PullError

_MAGIC, _VERSION = 793712314, 12
_HIERARCHICAL_SOFTMAX = 1
_LABEL = "__label__"
_NUM_CENTROIDS = 256


class _Reader:
    """Reads little-endian values of a file one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def values(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(f"<{layout}", self._data, self._offset)
        self._offset += struct.calcsize(f"<{layout}")
        return found

    def text(self) -> str:
        end = self._data.index(b"\0", self._offset)
        found = self._data[self._offset : end].decode("utf-8", "surrogateescape")
        self._offset = end + 1
        return found

    def array(self, dtype: str, count: int) -> np.ndarray:
        found = np.frombuffer(self._data, np.dtype(dtype).newbyteorder("<"), count, self._offset)
        self._offset += found.nbytes
        return found


def convert(sources: Path, model_dir: Path) -> None:
    """Write `model.safetensors`, `words.json` and `labels.json` from `model.ftz`. Raises PullError, OSError or
    ValueError."""
    reader = _Reader((sources / "model.ftz").read_bytes())
    magic, version = reader.values("ii")
    _, _, _, _, _, word_ngrams, loss, *_ = reader.values("12id")
    if (magic, version, word_ngrams, loss) != (_MAGIC, _VERSION, 1, _HIERARCHICAL_SOFTMAX):
        raise PullError("only classifiers of fastText 0.9 with hierarchical softmax and without word n-grams convert")
    _, num_words, num_labels, _, num_ngrams = reader.values("iiiqq")
    entries = [(reader.text(), reader.values("qb")[0]) for _ in range(num_words + num_labels)]  # text, count
    pairs = reader.array("i4", 2 * num_ngrams).reshape(-1, 2)  # hash of an n-gram, number of its vector
    vectors = _quantized_matrix(reader)
    (is_quantized,) = reader.values("?")
    num_rows, num_columns = reader.values("qq")
    if is_quantized or len(vectors) != num_words + num_ngrams:
        raise PullError("the classifier's matrices do not have the sizes that its dictionary names")
    nodes = reader.array("f4", num_rows * num_columns).reshape(num_rows, num_columns)[: num_labels - 1]
    right, left = _paths([count for _, count in entries[num_words:]])
    hashes = pairs[np.argsort(pairs[:, 1]), 0]
    save({"vectors": vectors, "nodes": nodes, "right": right, "left": left, "ngram_hashes": hashes}, model_dir)
    (model_dir / "words.json").write_text(json.dumps([word for word, _ in entries[:num_words]]))
    labels = [word.removeprefix(_LABEL) for word, _ in entries[num_words:]]
    (model_dir / "labels.json").write_text(json.dumps(labels))


def _quantized_matrix(reader: _Reader) -> np.ndarray:
    """Return a matrix of product-quantized rows, whose lengths are quantized too."""
    is_quantized, has_norms, num_rows, _num_columns, num_codes = reader.values("??qqi")
    if not (is_quantized and has_norms):
        raise PullError("only quantized classifiers (.ftz) with quantized lengths convert")
    rows = _decoded(reader, reader.array("u1", num_codes), num_rows)
    lengths = _decoded(reader, reader.array("u1", num_rows), num_rows)
    found: np.ndarray = rows * lengths
    return found


def _decoded(reader: _Reader, codes: np.ndarray, num_rows: int) -> np.ndarray:
    """Read a product quantizer and return the rows that the codes stand for."""
    dim, num_parts, part_size, last_size = reader.values("iiii")
    centroids = reader.array("f4", dim * _NUM_CENTROIDS)
    codes = codes.reshape(num_rows, num_parts)
    parts = []
    for number in range(num_parts):
        size = last_size if number == num_parts - 1 else part_size
        start = number * _NUM_CENTROIDS * part_size
        table = centroids[start : start + _NUM_CENTROIDS * size].reshape(_NUM_CENTROIDS, size)
        parts.append(table[codes[:, number]])
    return np.concatenate(parts, axis=1)


def _paths(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the branches to each label in fastText's Huffman tree, as two matrices [labels, nodes] of 0 and 1."""
    num_labels = len(counts)
    weights = counts + [0] * (num_labels - 1)
    parent, is_right = [0] * (2 * num_labels - 1), [False] * (2 * num_labels - 1)
    leaf, node = num_labels - 1, num_labels  # the lightest leaf and inner node without a parent; labels are sorted
    for number in range(num_labels, 2 * num_labels - 1):
        lightest = []
        for _ in range(2):
            if leaf >= 0 and (node >= number or weights[leaf] < weights[node]):
                lightest.append(leaf)
                leaf -= 1
            else:
                lightest.append(node)
                node += 1
        weights[number] = sum(weights[each] for each in lightest)
        for each in lightest:
            parent[each] = number
        is_right[lightest[1]] = True
    right, left = (np.zeros((num_labels, num_labels - 1), np.float32) for _ in range(2))
    for label in range(num_labels):
        at = label
        while at != 2 * num_labels - 2:
            (right if is_right[at] else left)[label, parent[at] - num_labels] = 1
            at = parent[at]
    return right, left
