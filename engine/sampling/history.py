"""Logit biases and penalties of a step as flat arrays, applied to all rows at once.

`adjust` is the definition in plain torch; `engine/kernels/triton_penalties.py` does the same over the tokens only.

Letters: K rows, V vocabulary, H rows with a history, N tokens of all histories, B biased logits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from engine.arrays import Floats, Ints
from engine.inputs import LogitBias, SamplingInputs
from engine.kernels.upload import Upload

_MIN_REPETITION = 1e-3  # logits are divided by the penalty


class Histories(NamedTuple):
    """The tokens of H rows with penalties, on the device. The tokens of a row may lie anywhere in one buffer."""

    token_ids: torch.Tensor  # int32 [N]
    spans: torch.Tensor  # int32 [4, H]: row of logits or -1, first token, number of tokens, number of prompt tokens
    penalties: torch.Tensor  # float32 [3, H]: repetition, presence, frequency


class Biases(NamedTuple):
    """Values to add to logits, on the device; no logit occurs twice."""

    places: torch.Tensor  # int32 [2, B]: row of logits or -1, token id
    values: torch.Tensor  # float32 [B]


Adjust = Callable[[torch.Tensor, list[Biases], Histories | None], None]


def upload(inputs: SamplingInputs, device: torch.device) -> tuple[list[Biases], Histories | None]:
    """Return the biases and histories of a step on the device. A row's second bias is in the second entry."""
    move = Upload(device).move
    groups: list[list[LogitBias]] = [[], []]
    num_seen: Counter[int] = Counter()
    for bias in inputs.biases:
        groups[num_seen[bias.row]].append(bias)
        num_seen[bias.row] += 1
    biases = []
    for group in filter(None, groups):
        rows = np.repeat([bias.row for bias in group], [len(bias.token_ids) for bias in group])
        ids = np.concatenate([bias.token_ids for bias in group])
        values: Floats = np.concatenate([bias.values for bias in group]).astype(np.float32)
        biases.append(Biases(*move((np.stack((rows, ids)).astype(np.int32),)), *move((values,))))
    if not inputs.histories:
        return biases, None
    rows = np.array([history.row for history in inputs.histories])
    lengths = np.array([len(history.token_ids) for history in inputs.histories])
    prompts = [history.num_prompt for history in inputs.histories]
    spans: Ints = np.stack((rows, np.cumsum(lengths) - lengths, lengths, prompts)).astype(np.int32)
    repetition = np.maximum(inputs.repetition_penalty[rows], _MIN_REPETITION)
    penalties = np.stack((repetition, inputs.presence_penalty[rows], inputs.frequency_penalty[rows]))
    token_ids = np.concatenate([history.token_ids for history in inputs.histories]).astype(np.int32)
    return biases, Histories(*move((token_ids, spans)), *move((penalties.astype(np.float32),)))


def adjust(logits: torch.Tensor, biases: list[Biases], histories: Histories | None) -> None:
    """Apply biases, then penalties to logits [K, V] in place."""
    for bias in biases:
        rows, ids = bias.places.long()
        values = torch.where(rows < 0, 0.0, bias.values)
        logits.index_put_((rows.clamp(min=0), ids), values, accumulate=True)
    if histories is None:
        return
    rows, starts, lengths, num_prompt = histories.spans.long()
    shape = len(rows), logits.shape[1]
    owners = torch.repeat_interleave(torch.arange(len(rows), device=logits.device), lengths)  # [N]
    offsets = torch.arange(len(owners), device=logits.device) - (lengths.cumsum(0) - lengths)[owners]
    ids = histories.token_ids.long()[starts[owners] + offsets]
    is_completion = (offsets >= num_prompt[owners]).float()
    seen, counts = (torch.zeros(shape, device=logits.device) for _ in range(2))
    seen.index_put_((owners, ids), torch.ones_like(is_completion), accumulate=True)
    counts.index_put_((owners, ids), is_completion, accumulate=True)
    repetition, presence, frequency = histories.penalties.unsqueeze(-1)
    is_used = rows >= 0
    before = logits[rows[is_used]]
    repeated = torch.where(before > 0, before / repetition[is_used], before * repetition[is_used])
    after = torch.where(seen[is_used] > 0, repeated, before)
    logits[rows[is_used]] = after - (frequency * counts + presence * (counts > 0))[is_used]
