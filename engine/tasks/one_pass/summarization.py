"""Summarization models in their worker process: BART, T5 and Pegasus with `transformers`.

The options of generation are those of the model: `task_specific_params` of `config.json` for T5, and
`generation_config.json` for the others.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from engine.tasks.one_pass.seq2seq import Seq2SeqModel
from engine.tasks.one_pass.transformers_models import read_config
from engine.tasks.summarization import SummarizationModelInfo
from engine.tasks.text_parts import PartOutput, TextPart

_MODEL_TYPES = ("bart", "t5", "pegasus", "bigbird_pegasus", "led", "longt5", "mt5")
_DEFAULT_LENGTH = 128  # for a model that names no length; the default of transformers, 20, is too short
_LIBRARY_DEFAULT_LENGTH = 20


def load(model_dir: Path, device: str) -> SummarizationModel:
    """Load the model of a folder. Raises UnsupportedModel, OSError, ValueError or KeyError."""
    return SummarizationModel(model_dir, read_config(model_dir, _MODEL_TYPES, "summarization models"), device)


class SummarizationModel:
    """One loaded model, a `WorkerModel`."""

    item_type = TextPart

    def __init__(self, model_dir: Path, config: dict[str, Any], device: str) -> None:
        self._model = Seq2SeqModel(model_dir, config, device)
        options = dict((config.get("task_specific_params") or {}).get("summarization") or {})
        self._prefix: str = options.pop("prefix", "summarize: " if "t5" in config["model_type"] else "")
        own = self._model.model.generation_config
        length = options.pop("max_length", None) or own.max_length
        self._max_length = _DEFAULT_LENGTH if length in (None, _LIBRARY_DEFAULT_LENGTH) else int(length)
        self._min_length = int(options.pop("min_length", None) or own.min_length or 0)
        self._options = options
        # The prefix and the special tokens are part of the input.
        num_added = len(self._model.tokenizer(self._prefix)["input_ids"]) + 1
        self.info = SummarizationModelInfo(self._model.max_tokens - num_added)

    def warm_up(self) -> None:
        self.run([TextPart("a", max_length=8)])

    def run(self, items: list[TextPart]) -> list[PartOutput]:
        """Return the summary of each part. Parts with the same maximum length share batches."""
        groups: dict[int, list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            length = min(item.max_length or self._max_length, self._model.max_tokens)
            groups[length].append(number)
        outputs: list[PartOutput] = [PartOutput("", 0, 0)] * len(items)
        for length, numbers in groups.items():
            options = self._options | {"max_length": length, "min_length": min(self._min_length, length)}
            summaries = self._model.rewrite([self._prefix + items[number].text for number in numbers], options)
            for number, summary in zip(numbers, summaries, strict=True):
                outputs[number] = summary
        return outputs
