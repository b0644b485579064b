"""Universal Sentence Encoder Lite with random weights: its conversion, its tokenizer, and rows beside other rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from catalog.conversions import sentence_encoder as conversion
from engine.tasks.one_pass.sentence_encoder import SentenceEncoder
from engine.tasks.sentence_tokenizer import SentenceTokenizer
from engine.tasks.text_embeddings import TokenRow

_VOCABULARY = [["\ufffd", 0], *([f"<{number}>", 0] for number in range(5)), ["\u2581", -4], ["\u2581warm", -2],
               ["place", -3], ["\u2581place", -2.5], [":", None], ["w", -9], ["a", -9]]  # fmt: skip


def shape_of(name: str) -> tuple[int, ...]:
    """Return the shape of a weight in the TensorFlow graph."""
    width = 256 if name.startswith("layers.0") else 512
    part, _, kind = name.removeprefix("layers.0.").removeprefix("layers.1.").rpartition(".")
    sizes = {
        "embeddings": (8002, 256), "attention_norm": (width,), "qkv": (1, 1, width, 3 * width),
        "output": (1, 1, width, 512), "widen": (256, 512), "feed_forward_norm": (512,), "up": (512, 1536),
        "down": (1536, 512), "head": (512, 512), "": (1, 128),
    }  # fmt: skip
    return sizes[part][-1:] if kind == "bias" else sizes[part]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, converted from a graph."""
    sources, folder = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("model")
    names = dict(conversion._OTHER_WEIGHTS)
    for layer in "01":
        names |= {
            f"layers.{layer}.{name}": path.replace("%", layer) for name, path in conversion._LAYER_WEIGHTS.items()
        }
    shapes = {path: shape_of(name) for name, path in names.items()}
    entries = [{"name": path, "shape": shape, "dtype": "float32"} for path, shape in shapes.items()]
    manifest = [{"weights": entries, "paths": ["shard"]}]
    (sources / "model.json").write_text(json.dumps({"weightsManifest": manifest}))
    values = np.random.default_rng(0).normal(0, 0.1, sum(math.prod(shape) for shape in shapes.values()))
    (sources / "shard").write_bytes(values.astype("<f4").tobytes())
    (sources / "vocab.json").write_text(json.dumps(_VOCABULARY))
    conversion.convert(sources, folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 128}')
    return folder


def test_tokenizer_finds_the_likeliest_pieces_and_joins_unknown_characters(folder: Path):
    encode = SentenceTokenizer(folder).encode
    assert encode(["warm place", "warm: \u4f60\u597d", "<0>"]) == [[7, 9], [7, 10, 6, 0], [6, 0]]
    assert len(encode(["warm " * 200])[0]) == 128


def test_vector_has_unit_length_and_does_not_depend_on_other_rows(folder: Path):
    model = SentenceEncoder(folder, "cpu")
    rows = [TokenRow(np.arange(length, dtype="<i4").tobytes(), is_cls=False) for length in (3, 4, 100)]
    together = np.stack([np.frombuffer(row, "<f4") for row in model.run(rows)])
    alone = np.stack([np.frombuffer(model.run([row])[0], "<f4") for row in rows])
    assert together == pytest.approx(alone, abs=1e-5)
    assert np.linalg.norm(together, axis=1) == pytest.approx(1, abs=1e-5)
    assert float(together[0] @ together[1]) < 0.9999


def test_other_weights_are_refused(tmp_path: Path):
    save_file({"head.weight": np.zeros((2, 2), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="Missing key"):
        SentenceEncoder(tmp_path, "cpu")
