"""Conversion of classifiers of words: a joblib file is read as data, and a fastText file in its binary format."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from catalog.conversions import fasttext, profanity
from catalog.errors import PullError


def fasttext_file(words: list[tuple[str, int]], labels: list[tuple[str, int]], loss: int = 1) -> bytes:
    """Return a classifier with vectors of two numbers: the vector of word or n-gram `n` is [n, -n] times 2."""
    ngrams = [(40, 0), (7, 1)]
    num_rows = len(words) + len(ngrams)
    arguments = struct.pack("<12id", 2, 0, 0, 0, 0, 1, loss, 0, 100, 2, 3, 0, 0.0)
    sizes = struct.pack("<iiiqq", len(words) + len(labels), len(words), len(labels), 99, len(ngrams))
    entries = b"".join(
        text.encode() + b"\0" + struct.pack("<qb", count, number >= len(words))
        for number, (text, count) in enumerate([*words, *labels])
    )
    pairs = b"".join(struct.pack("<ii", *pair) for pair in ngrams)
    centroids = np.zeros((1, 256, 2), "<f4")
    centroids[0, :, 0], centroids[0, :, 1] = np.arange(256), -np.arange(256)
    lengths = np.full((1, 256, 1), 2, "<f4")
    matrix = struct.pack("<??qqi", True, True, num_rows, 2, num_rows) + bytes(range(num_rows))
    matrix += struct.pack("<4i", 2, 1, 2, 2) + centroids.tobytes() + bytes(num_rows)
    matrix += struct.pack("<4i", 1, 1, 1, 1) + lengths.tobytes()
    nodes = np.arange(2 * len(labels), dtype="<f4")
    output = struct.pack("<?qq", False, len(labels), 2) + nodes.tobytes()
    return struct.pack("<ii", 793712314, 12) + arguments + sizes + entries + pairs + matrix + output


def test_fasttext_classifier_becomes_arrays_words_and_labels(tmp_path: Path):
    labels = [("__label__en", 40), ("__label__de", 30), ("__label__fr", 20)]
    (tmp_path / "model.ftz").write_bytes(fasttext_file([("</s>", 9), ("house", 5), ("größe", 1)], labels))
    fasttext.convert(tmp_path, tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    assert arrays["vectors"].tolist() == [[2 * number, -2 * number] for number in range(5)]
    assert arrays["ngram_hashes"].tolist() == [40, 7]
    assert json.loads((tmp_path / "words.json").read_text()) == ["</s>", "house", "größe"]
    assert json.loads((tmp_path / "labels.json").read_text()) == ["en", "de", "fr"]
    # The tree joins the two rarest labels first. In it, the lighter of two branches goes to the left.
    assert arrays["left"].tolist() == [[0, 1], [0, 0], [1, 0]]
    assert arrays["right"].tolist() == [[0, 0], [1, 1], [0, 1]]


@pytest.mark.parametrize("data", [fasttext_file([("a", 1)], [("__label__x", 1)], loss=3), bytes(200)])
def test_other_fasttext_files_are_refused(tmp_path: Path, data: bytes):
    (tmp_path / "model.ftz").write_bytes(data)
    with pytest.raises(PullError, match="hierarchical softmax"):
        fasttext.convert(tmp_path, tmp_path)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code of the file runs",)


def test_joblib_file_cannot_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("vectorizer.joblib", "model.joblib"):
        (tmp_path / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(PullError, match="print is not data"):
        profanity.convert(tmp_path, tmp_path)
    assert "runs" not in capsys.readouterr().out
