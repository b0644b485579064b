"""Conversion of Universal Sentence Encoder Lite to safetensors and a tokenizer: a TensorFlow.js graph and a vocabulary.

The names of weights become those of `engine/tasks/one_pass/sentence_encoder.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from catalog.conversions.tensorflow_js import Arrays, read_shards, save

_ENCODER = "module_apply_default/Encoder_en/KonaTransformer/Encode/"
_NUM_RESERVED = 6  # pieces at the start of the vocabulary that no text contains
_LAYER_WEIGHTS = {
    "attention_norm.weight": f"{_ENCODER}Layer_%/TransformerLayer/layer_prepostprocess/layer_norm/layer_norm_scale",
    "attention_norm.bias": f"{_ENCODER}Layer_%/TransformerLayer/layer_prepostprocess/layer_norm/layer_norm_bias",
    "qkv.weight": "module/Encoder_en/KonaTransformer/Encode/Layer_%/TransformerLayer/MultiheadAttention/"
    "qkv_transform_single/kernel/part_0",
    "qkv.bias": f"{_ENCODER}Layer_%/TransformerLayer/MultiheadAttention/qkv_transform_single/bias",
    "output.weight": "module/Encoder_en/KonaTransformer/Encode/Layer_%/TransformerLayer/MultiheadAttention/"
    "output_transform_single/kernel/part_0",
    "output.bias": f"{_ENCODER}Layer_%/TransformerLayer/MultiheadAttention/output_transform_single/bias",
    "feed_forward_norm.weight": f"{_ENCODER}Layer_%/TransformerLayer/FFN/layer_prepostprocess/layer_norm/"
    "layer_norm_scale",
    "feed_forward_norm.bias": f"{_ENCODER}Layer_%/TransformerLayer/FFN/layer_prepostprocess/layer_norm/layer_norm_bias",
    "up.weight": f"{_ENCODER}TransformerStack/Layer_%/TransformerLayer/FFN/conv1/Tensordot/Reshape_1",
    "up.bias": f"{_ENCODER}Layer_%/TransformerLayer/FFN/conv1/bias",
    "down.weight": f"{_ENCODER}TransformerStack/Layer_%/TransformerLayer/FFN/conv2/Tensordot/Reshape_1",
    "down.bias": f"{_ENCODER}Layer_%/TransformerLayer/FFN/conv2/bias",
}
_OTHER_WEIGHTS = {
    "embeddings.weight": "module/Embeddings_en",
    "frequencies": f"{_ENCODER}TransformerStack/Layer_0/AddTimingSignal/TimingSignal/ExpandDims_1",
    "layers.0.widen.weight": f"{_ENCODER}Layer_0/TransformerLayer/dense/kernel",
    "layers.0.widen.bias": f"{_ENCODER}Layer_0/TransformerLayer/dense/bias",
    "head.weight": "module/Encoder_en/hidden_layers/tanh_layer_0/weights",
    "head.bias": "module/Encoder_en/hidden_layers/tanh_layer_0/bias",
}


def convert(sources: Path, model_dir: Path) -> None:
    """Write `model.safetensors` from `model.json` and its shards, and `tokenizer.json` from `vocab.json`. Raises
    PullError, OSError, ValueError or KeyError."""
    weights = read_shards(sources)
    names = dict(_OTHER_WEIGHTS)
    for layer in ("0", "1"):
        names |= {f"layers.{layer}.{name}": path.replace("%", layer) for name, path in _LAYER_WEIGHTS.items()}
    save({name: _ordered(weights, name, path) for name, path in names.items()}, model_dir)
    vocabulary = json.loads((sources / "vocab.json").read_text("utf-8"))
    (model_dir / "tokenizer.json").write_text(json.dumps(_tokenizer(vocabulary)))


def _ordered(weights: Arrays, name: str, path: str) -> Any:
    """Return a weight in the order of torch: [out, in] for linear layers."""
    found = weights[path] if path in weights else weights[f"{path}/ConcatPartitions/concat"]
    found = found.squeeze()
    return found.T if name.endswith(".weight") and found.ndim == 2 and name != "embeddings.weight" else found


def _tokenizer(vocabulary: list[tuple[str, float | None]]) -> dict[str, Any]:
    """Return a definition for `tokenizers`. Reserved pieces get names with a space, which no normalized text has.

    The vocabulary has no score for pieces with a colon; the best score makes them win, as in the package's tokenizer.
    """
    pieces = [[f"reserved {number}", 0.0] for number in range(_NUM_RESERVED)]
    pieces += [[piece, score or 0.0] for piece, score in vocabulary[_NUM_RESERVED:]]
    return {
        "version": "1.0",
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFKC"},
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
        "added_tokens": [],
    }
