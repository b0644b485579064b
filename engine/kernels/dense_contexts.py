"""Whole contexts kept dense, one for each of the few sequences that are guessed for: several new tokens a step cost
little more than one, and guesses that turned out wrong are written over.

Column i holds token i, in float32 whatever the pool has. The paged pool stays the truth: what is not here is copied
from it, and every step's keys and values go there too. Knows sequences only by id and length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.kernels.interface import AttentionShape, AttentionStep, KvPool
from engine.kernels.reference import causal_bias
from engine.kernels.score_weights import weigh

_COLUMN_STEP = 256  # capacities are multiples
_MAX_CONTEXTS = 4
_IDLE_STEPS = 64  # after which contexts are let go


@dataclass(eq=False)
class _Context:
    """One sequence's: what its latest tokens were, as far as `num_written`. Letters as in `interface.py`, S columns."""

    data: torch.Tensor  # float32 [L, 2, G, S, D]
    num_written: int = 0
    used_at: int = 0


@dataclass(frozen=True, eq=False)
class _Row:
    """What a row of the step needs in every layer. n query heads × its t tokens."""

    first: int
    last: int
    start: int  # its new tokens' first column
    context: _Context
    views: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # of each layer: new columns, keys [G, D, s], values
    biases: list[torch.Tensor]  # of each reach [n, s]


class DenseContexts:
    """Once a step `begin` or `pass_by`; after `begin`, `attend` for every layer in order, of which the last stores."""

    def __init__(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor], max_bytes: int) -> None:
        self._shape = shape
        self._pool = pool
        self._sinks = sinks
        self._max_bytes = max_bytes
        self._is_plain = shape.softcap is None and not sinks
        self._reaches, self._reach_of = shape.distinct_reaches(pool.num_layers)
        self._group = shape.num_heads // shape.num_kv_heads
        self._token = (shape.num_planes, shape.num_kv_heads, shape.head_dim)
        self._blocks = pool.data.view(pool.num_layers, pool.num_blocks, -1)  # [L, N, block size × 2 G D]
        self._slots = pool.data.unflatten(2, self._token)  # [L, slots, 2, G, D]
        self._contexts: dict[int, _Context] = {}
        self._rows: list[_Row] = []
        self._slot_mapping = torch.empty(0, dtype=torch.int64)
        self._now = 0

    def wipe(self) -> None:
        """Between steps: overwrite every context; what is needed again is copied from the pool."""
        for context in self._contexts.values():
            context.data.zero_()
        self._contexts, self._rows = {}, []

    def pass_by(self, step: AttentionStep) -> None:
        """A step that does not use these contexts: what it writes is missing here."""
        self._now += 1
        if not self._contexts:
            return
        starts = step.context_lens - np.diff(step.query_starts)
        for sequence_id, start in zip(step.sequence_ids.tolist(), starts.tolist(), strict=True):
            context = self._contexts.get(sequence_id)
            if context is not None:
                context.num_written = min(context.num_written, start)
        self._let_go()

    def _let_go(self) -> None:
        """Of contexts that were not used for long, and of those that are too many."""
        by_use = sorted(self._contexts, key=lambda each: self._contexts[each].used_at)
        for sequence_id in by_use:
            is_idle = self._now - self._contexts[sequence_id].used_at > _IDLE_STEPS
            if is_idle or len(self._contexts) > _MAX_CONTEXTS:
                del self._contexts[sequence_id]

    def begin(self, step: AttentionStep) -> bool:
        """Make room for the step's rows; False if there are too many or their contexts are too large."""
        num_rows = len(step.context_lens)
        columns = sum(_capacity_for(length) for length in step.context_lens.tolist())
        if num_rows > _MAX_CONTEXTS or columns * self._column_bytes > self._max_bytes:
            return False
        self._now += 1
        self._slot_mapping = step.slot_mapping
        self._rows = [self._row(step, row) for row in range(num_rows)]
        self._let_go()
        return True

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [T, (H + 2 G) D], rotated -> [T, H ·]."""
        parts = [self._attend_row(layer, qkv, row) for row in self._rows]
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        if layer == self._pool.num_layers - 1:
            self._store()
        return mixed if mixed.dtype == qkv.dtype else mixed.to(qkv.dtype)

    def _attend_row(self, layer: int, qkv: torch.Tensor, row: _Row) -> torch.Tensor:
        shape, (new, keys, values) = self._shape, row.views[layer]
        tokens = qkv[row.first : row.last]
        num_tokens = row.last - row.first
        new.copy_(tokens[:, shape.query_width :].unflatten(1, self._token).permute(1, 2, 0, 3))  # [2, G, t, D]
        queries = tokens[:, : shape.query_width].unflatten(1, (shape.num_kv_heads, self._group, shape.head_dim))
        flat = queries.permute(1, 2, 0, 3).float().reshape(shape.num_kv_heads, -1, shape.head_dim)  # [G, n, D]
        bias = row.biases[self._reach_of[layer]]
        if self._is_plain:
            weights = torch.softmax(torch.baddbmm(bias, flat, keys, alpha=shape.score_scale), -1)  # [G, n, s]
        else:
            scores = torch.bmm(flat, keys).mul_(shape.score_scale)
            sink = None
            if self._sinks:
                sink = self._sinks[layer].view(shape.num_kv_heads, -1, 1).float().repeat_interleave(num_tokens, 1)
            weights = weigh(scores, bias, shape.softcap, sink)
        mixed = torch.bmm(weights, values).view(shape.num_heads, num_tokens, -1)  # [H, t, ·]
        return mixed.transpose(0, 1).reshape(num_tokens, shape.mixed_width)

    def _row(self, step: AttentionStep, row: int) -> _Row:
        shape = self._shape
        first, last = int(step.query_starts[row]), int(step.query_starts[row + 1])
        length = int(step.context_lens[row])
        start = length - (last - first)
        context = self._context(int(step.sequence_ids[row]), start, length, step.block_tables[row])
        layers = context.data.unbind(0)  # L × [2, G, S, D]
        views = []
        for layer in layers:
            values = layer[-1, :, :length]
            if shape.value_dim is not None:
                values = values[..., : shape.value_dim]
            views.append((layer[:, :, start:length], layer[0, :, :length].transpose(1, 2), values))
        biases = [causal_bias(last - first, length, reach).repeat(self._group, 1) for reach in self._reaches]
        return _Row(first, last, start, context, views, biases)

    def _context(self, sequence_id: int, start: int, length: int, block_table: object) -> _Context:
        """The context of a sequence, right up to `start`, with room up to `length`."""
        context = self._contexts.get(sequence_id)
        if context is None:
            context = self._contexts[sequence_id] = _Context(self._empty(_capacity_for(length)))
        num_right = min(context.num_written, start)  # what was written from `start` on did not stand
        if length > context.data.shape[3]:
            larger = self._empty(_capacity_for(length))
            larger[:, :, :, :num_right] = context.data[:, :, :, :num_right]
            context.data = larger
        if num_right < start:
            self._fill(context, num_right, start, block_table)
        context.num_written, context.used_at = length, self._now
        return context

    def _fill(self, context: _Context, first: int, start: int, block_table: object) -> None:
        """Copy columns `first` to `start` from the pool."""
        size = self._pool.block_size
        first_block = first // size
        block_ids = torch.as_tensor(block_table)[first_block : -(-start // size)].long()
        tokens = self._blocks.index_select(1, block_ids).view(len(self._blocks), -1, *self._token)
        tokens = tokens[:, first - first_block * size : start - first_block * size]  # [L, missing, 2, G, D]
        context.data[:, :, :, first:start].copy_(tokens.permute(0, 2, 3, 1, 4))

    def _store(self) -> None:
        new = [row.context.data[:, :, :, row.start : row.start + row.last - row.first] for row in self._rows]
        columns = new[0] if len(new) == 1 else torch.cat(new, 3)  # [L, 2, G, T, D]
        self._slots.index_copy_(1, self._slot_mapping, columns.permute(0, 3, 1, 2, 4).to(self._slots.dtype))

    def _empty(self, num_columns: int) -> torch.Tensor:
        num_planes, num_kv_heads, head_dim = self._token
        return torch.empty(len(self._blocks), num_planes, num_kv_heads, num_columns, head_dim)

    @property
    def _column_bytes(self) -> int:
        return 4 * len(self._blocks) * self._shape.kv_width


def _capacity_for(length: int) -> int:
    """Columns for a context: room for as many steps as make copying it rare."""
    return -(-(length + 32) // _COLUMN_STEP) * _COLUMN_STEP
