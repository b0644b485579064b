"""Models of the task text classification in their worker process: token rows to scores of labels, with `transformers`.

The scores are those of the `text-classification` pipeline of `transformers`: softmax over several labels, and sigmoid
for a single label or for labels that do not exclude each other. Never runs code of a model. A row's result does not
depend on other rows, except for rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.tasks.one_pass.row_groups import group_by_length
from engine.tasks.one_pass.transformers_models import load_pretrained, read_config
from engine.tasks.one_pass.word_classifiers import FASTTEXT, TFIDF, FastTextClassifier, TfidfClassifier
from engine.tasks.text_classification import ClassifiedRow, ClassifierInfo

_MODEL_TYPES = (
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta",
    "xlm-roberta", FASTTEXT, TFIDF,
)  # fmt: skip


def load(model_dir: Path, device: str) -> ClassificationModel | TfidfClassifier | FastTextClassifier:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    config = read_config(model_dir, _MODEL_TYPES, "text classification models")
    if config["model_type"] == TFIDF:
        return TfidfClassifier(model_dir)
    if config["model_type"] == FASTTEXT:
        return FastTextClassifier(model_dir, config)
    model_type = SentenceHeadModel if "sentence_head" in config else ClassificationModel
    return model_type(model_dir, config, device)


class ClassificationModel:
    """One loaded model, a `WorkerModel`."""

    item_type = ClassifiedRow

    def __init__(self, model_dir: Path, config: dict[str, Any], device: str) -> None:
        self._device = torch.device(device)
        self._model = self._load(model_dir).to(self._device)
        labels = self._model.config.id2label
        self.info = ClassifierInfo(tuple(str(labels[index]) for index in range(len(labels))), int(config["vocab_size"]))
        self._pad_id = int(config.get("pad_token_id") or 0)
        self._num_types = int(config.get("type_vocab_size") or 0)
        self._is_sigmoid = len(labels) == 1 or config.get("problem_type") == "multi_label_classification"

    def _load(self, model_dir: Path) -> Any:
        return load_pretrained("AutoModelForSequenceClassification", model_dir, is_complete=True)

    def warm_up(self) -> None:
        self.run([ClassifiedRow(np.full(8, self._pad_id, dtype="<i4").tobytes(), bytes(8))])

    @torch.inference_mode()
    def run(self, items: list[ClassifiedRow]) -> list[bytes]:
        """Return the scores of each row as little-endian float32."""
        scores = np.empty((len(items), len(self.info.labels)), dtype="<f4")
        for group in group_by_length([item.cost for item in items]):
            length = max(items[index].cost for index in group)
            token_ids = np.full((len(group), length), self._pad_id, dtype=np.int64)  # [B, T]
            type_ids = np.zeros((len(group), length), dtype=np.int64)  # [B, T]
            mask = np.zeros((len(group), length), dtype=np.int64)  # [B, T]
            for number, index in enumerate(group):
                item = items[index]
                token_ids[number, : item.cost] = np.frombuffer(item.token_ids, dtype=np.int32)
                type_ids[number, : item.cost] = np.frombuffer(item.type_ids, dtype=np.uint8)
                mask[number, : item.cost] = 1
            scores[group] = self._forward(token_ids, type_ids, mask).cpu().numpy()
        return [row.tobytes() for row in scores]

    def _forward(self, token_ids: np.ndarray, type_ids: np.ndarray, mask: np.ndarray) -> torch.Tensor:
        inputs = {"input_ids": token_ids, "attention_mask": mask}
        if self._num_types > 1:
            inputs["token_type_ids"] = np.minimum(type_ids, self._num_types - 1)
        tensors = {name: torch.from_numpy(array).to(self._device) for name, array in inputs.items()}
        logits = self._logits(tensors)  # [B, labels]
        return logits.sigmoid() if self._is_sigmoid else logits.softmax(-1)

    def _logits(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self._model(**inputs).logits.float()
        return logits


class SentenceHeadModel(ClassificationModel):
    """A linear head on the sentence vectors of an embedding model: the mean over the tokens, of unit length.

    `sentence_head` in `config.json` has the `weight` [labels, dimensions] and the `bias` [labels] of the head.
    """

    def __init__(self, model_dir: Path, config: dict[str, Any], device: str) -> None:
        super().__init__(model_dir, config, device)
        head = config["sentence_head"]
        self._weight = torch.tensor(head["weight"], dtype=torch.float32, device=self._device)
        self._bias = torch.tensor(head["bias"], dtype=torch.float32, device=self._device)

    def _load(self, model_dir: Path) -> Any:
        return load_pretrained("AutoModel", model_dir)

    def _logits(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = self._model(**inputs).last_hidden_state  # [B, T, D]
        weights = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)  # [B, T, 1]
        mean = (hidden * weights).sum(1) / weights.sum(1)  # [B, D]
        return torch.nn.functional.linear(torch.nn.functional.normalize(mean, dim=-1), self._weight, self._bias)
