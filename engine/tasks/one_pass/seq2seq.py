"""Models with an encoder and a decoder that rewrite texts, in batches, with `transformers`.

Decoding is greedy or a beam search, as the model's own generation configuration says. Never runs code of a model. The
output for a text does not depend on the other texts, except for rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.tasks.one_pass.row_groups import group_by_length
from engine.tasks.one_pass.transformers_models import load_pretrained, load_tokenizer
from engine.tasks.text_parts import PartOutput

_MAX_BATCH = 16
_DEFAULT_POSITIONS = 512


class Seq2SeqModel:
    """A loaded model and its tokenizer. `max_tokens` is the number of tokens of its longest input and output."""

    def __init__(self, model_dir: Path, config: dict[str, Any], device: str) -> None:
        """Raises OSError, ValueError or KeyError."""
        self.tokenizer = load_tokenizer(model_dir)
        self.model = load_pretrained("AutoModelForSeq2SeqLM", model_dir, is_complete=True).to(torch.device(device))
        positions = config.get("max_position_embeddings") or config.get("n_positions") or _DEFAULT_POSITIONS
        self.max_tokens = int(positions)

    def rewrite(self, texts: list[str], options: dict[str, Any]) -> list[PartOutput]:
        """Return the outputs of texts with equal options of `generate`."""
        rows = self.tokenizer(texts)["input_ids"]
        outputs: list[PartOutput] = [PartOutput("", 0, 0)] * len(texts)
        fitting = [number for number, row in enumerate(rows) if len(row) <= self.max_tokens]
        for number in set(range(len(rows))) - set(fitting):
            outputs[number] = self._rewrite_halves(texts[number], options)
        for group in group_by_length([len(rows[number]) for number in fitting]):
            for first in range(0, len(group), _MAX_BATCH):
                batch = [fitting[each] for each in group[first : first + _MAX_BATCH]]
                for number, output in zip(batch, self._generate([rows[each] for each in batch], options), strict=True):
                    outputs[number] = output
        return outputs

    def _rewrite_halves(self, text: str, options: dict[str, Any]) -> PartOutput:
        """Return the joined outputs of both halves of a text that has too many tokens."""
        middle = text.find(" ", len(text) // 2) if " " in text[len(text) // 2 :] else len(text) // 2
        halves = self.rewrite([text[:middle], text[middle:]], options)
        first, second = halves
        return PartOutput(
            f"{first.text} {second.text}",
            first.num_input_tokens + second.num_input_tokens,
            first.num_output_tokens + second.num_output_tokens,
        )

    @torch.inference_mode()
    def _generate(self, rows: list[list[int]], options: dict[str, Any]) -> list[PartOutput]:
        inputs = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self.model.device)
        output_ids = self.model.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], do_sample=False, **options
        )
        texts = self.tokenizer.batch_decode(output_ids, skip_special_tokens=True)
        lengths = (output_ids != self.tokenizer.pad_token_id).sum(1).tolist()
        return [
            PartOutput(text.strip(), len(row), length) for text, row, length in zip(texts, rows, lengths, strict=True)
        ]
