"""The model of the task text embeddings in its worker process: token rows to sentence vectors, with `transformers`.

Pooling and normalization follow the model's sentence-transformers files. Never runs code of a model. A row's result
does not depend on other rows, except for rounding.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.tasks.one_pass.row_groups import group_by_length
from engine.tasks.one_pass.sentence_encoder import MODEL_TYPE, SentenceEncoder
from engine.tasks.one_pass.transformers_models import load_pretrained
from engine.tasks.text_embeddings import EmbeddingModelInfo, TokenRow

_MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "electra")


def load(model_dir: Path, device: str) -> EmbeddingModel | SentenceEncoder:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    is_sentence_encoder = json.loads((model_dir / "config.json").read_text()).get("model_type") == MODEL_TYPE
    return SentenceEncoder(model_dir, device) if is_sentence_encoder else EmbeddingModel(model_dir, device)


class UnsupportedModel(ValueError):
    """The folder does not contain a supported embedding model."""


@dataclass(frozen=True)
class Recipe:
    """Post-processing: `pooling` mean or cls, and whether vectors are normalized to unit length."""

    pooling: str
    is_normalized: bool


def read_recipe(model_dir: Path) -> Recipe:
    """Read `modules.json` and the pooling module it names; the default is mean pooling with normalization.

    Raises UnsupportedModel for unknown modules or poolings.
    """
    modules_file = model_dir / "modules.json"
    if not modules_file.exists():
        return Recipe("mean", is_normalized=True)
    modules = {module["type"].rpartition(".")[2]: module["path"] for module in json.loads(modules_file.read_text())}
    unknown = set(modules) - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise UnsupportedModel(f"modules {', '.join(sorted(unknown))} are not supported")
    pooling = json.loads((model_dir / modules["Pooling"] / "config.json").read_text()) if "Pooling" in modules else {}
    modes = [
        key.removeprefix("pooling_mode_") for key, value in pooling.items() if key.startswith("pooling_mode_") and value
    ]
    names = {"mean_tokens": "mean", "cls_token": "cls"}
    if len(modes) > 1 or any(mode not in names for mode in modes):
        raise UnsupportedModel(f"pooling by {', '.join(modes)} is not supported")
    return Recipe(names[modes[0]] if modes else "mean", is_normalized="Normalize" in modules)


class EmbeddingModel:
    """One loaded model, a `WorkerModel`."""

    item_type = TokenRow

    def __init__(self, model_dir: Path, device: str) -> None:
        """Raises UnsupportedModel, OSError, ValueError or KeyError."""
        config = json.loads((model_dir / "config.json").read_text())
        if "auto_map" in config or config.get("model_type") not in _MODEL_TYPES:
            raise UnsupportedModel(f"embedding models are {', '.join(_MODEL_TYPES)} without code of their own")
        self._recipe = read_recipe(model_dir)
        self._device = torch.device(device)
        self._model = load_pretrained("AutoModel", model_dir).to(self._device)
        self._num_dimensions = int(config["hidden_size"])
        self._pad_id = int(config.get("pad_token_id") or 0)
        self.info = EmbeddingModelInfo(self._recipe.pooling, int(config["vocab_size"]))

    def warm_up(self) -> None:
        self.run([TokenRow(bytes(4 * 8), is_cls=False)])

    @torch.inference_mode()
    def run(self, items: list[TokenRow]) -> list[bytes]:
        """Return the vector of each row as little-endian float32."""
        rows = [np.frombuffer(item.token_ids, dtype=np.int32) for item in items]
        is_cls = np.array([item.is_cls for item in items])
        vectors = np.empty((len(rows), self._num_dimensions), dtype="<f4")
        for group in group_by_length([len(row) for row in rows]):
            length = max(len(rows[index]) for index in group)
            token_ids = np.full((len(group), length), self._pad_id, dtype=np.int64)  # [B, T]
            mask = np.zeros((len(group), length), dtype=np.int64)  # [B, T]
            for number, index in enumerate(group):
                token_ids[number, : len(rows[index])] = rows[index]
                mask[number, : len(rows[index])] = 1
            pooled = self._forward(torch.from_numpy(token_ids), torch.from_numpy(mask), torch.from_numpy(is_cls[group]))
            vectors[group] = pooled.float().cpu().numpy()
        return [vector.tobytes() for vector in vectors]

    def _forward(self, token_ids: torch.Tensor, mask: torch.Tensor, is_cls: torch.Tensor) -> torch.Tensor:
        token_ids, mask, is_cls = (each.to(self._device) for each in (token_ids, mask, is_cls))
        hidden = self._model(input_ids=token_ids, attention_mask=mask).last_hidden_state  # [B, T, D]
        weights = mask.unsqueeze(-1).to(hidden.dtype)  # [B, T, 1]
        mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)  # [B, D]
        pooled = torch.where(is_cls.unsqueeze(-1), hidden[:, 0], mean)
        return torch.nn.functional.normalize(pooled, dim=-1) if self._recipe.is_normalized else pooled
