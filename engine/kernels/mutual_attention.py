"""Attention between all tokens of an image, in both directions, with kernels that know causal attention only.

Each of the image's tokens becomes a row of its own whose context ends after the image. Kernels store the keys and
values of all of a step's tokens before they read any, so the row sees the tokens that follow. Layers with a sliding
window see the window of the image's last token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.arrays import Ints, Longs
from engine.kernels.interface import AttentionStep


@dataclass(frozen=True, eq=False)
class AttentionRows:
    """The rows of a step as attention kernels see them, see `AttentionStep`."""

    slot_mapping: torch.Tensor
    query_starts: Ints
    context_lens: Ints
    block_tables: Ints
    num_decode_rows: int
    rows: Longs  # [R'], the row of the step that each comes from


def with_mutual_attention(step: AttentionStep, spans: Ints) -> AttentionRows:
    """Return the step with a row for each token of `spans`, [M, 2]: the first token and the token after the last of an
    image, which the step contains to its end."""
    starts = step.query_starts
    inside = [np.arange(first, last + 1) for first, last in spans.tolist()]
    bounds = np.unique(np.concatenate((starts, *inside))).astype(np.int32)  # [R' + 1]
    rows = np.searchsorted(starts, bounds[:-1], "right") - 1  # [R'], the row of the step that each comes from
    ends = bounds[1:].copy()
    for first, last in spans.tolist():
        ends[(bounds[:-1] >= first) & (bounds[:-1] < last)] = last
    context_lens = (step.context_lens[rows] - starts[rows + 1] + ends).astype(np.int32)
    tables, num_decode_rows = step.block_tables[rows], step.num_decode_rows
    return AttentionRows(step.slot_mapping, bounds, context_lens, tables, num_decode_rows, rows)
