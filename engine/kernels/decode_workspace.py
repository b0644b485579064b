"""A dense copy of the decode batch's keys and values, appended to each step, so that no step gathers whole contexts.

The paged pool stays the truth: a row is copied from it when the row joins, and dropped in the first step without it.
Rows are right-aligned: the newest token of every row lies in the same column, so that one strided copy stores a step's
keys and values and all rows share one causal edge. What layers of different reach hide is one bias for each reach.
In bfloat16 values lie turned, one number of a head after the other, since products then read them as they are: oneDNN
packs the right side of a product, and does so anew for each. Knows sequences only by id and length.

          column 0                     newest     capacity
    row 0 | · · · · k k k k k k k k k k k k|- - - - -|     ·  hidden: before the row's first token
    row 1 | k k k k k k k k k k k k k k k k|- - - - -|     -  hidden: not written yet
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.interface import AttentionShape, KvPool, Reach
from engine.kernels.score_weights import weigh

# Capacities and, in bfloat16, rows are multiples: a kernel is compiled for every shape of product it meets.
_COLUMN_STEP = 64
_ROW_STEP = 4
_MAX_FLOAT32_POSITIONS = 1024  # rows × columns up to which float32 products beat bfloat16 ones
_HIDDEN = float("-inf")

Ids = NDArray[np.int64]
Lengths = NDArray[np.int32]


class DecodeWorkspace:
    """At most `max_bytes` of rows; letters as in `interface.py`, W workspace rows in use, P with padding, 2 planes
    (keys and values) or 1 where a key holds its value.

    Call `arrange` once a step with its decode rows, then `attend` for every layer in order, then `store`.
    """

    def __init__(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor], max_bytes: int) -> None:
        self._shape = shape
        self._sinks = sinks
        self._reaches, self._reach_of = shape.distinct_reaches(pool.num_layers)
        self._is_plain = shape.softcap is None and not sinks
        self._is_turned = self._is_alone = False  # values lie the other way; each query has keys of its own
        self._max_bytes = max_bytes
        self._block_size = pool.block_size
        self._pool_dtype = pool.data.dtype
        self._token = (shape.num_planes, shape.num_kv_heads, shape.head_dim)  # what is kept of one
        self._blocks = pool.data.view(pool.num_layers, pool.num_blocks, -1)  # [L, N, block size × 2 G D]
        self._pool = pool.data  # [L, slots, 2 G D], and with what is kept of a token seen apart
        self._slots = pool.data.unflatten(2, self._token)  # [L, slots, 2, G, D]
        self._scale, self._query_width, self._mixed_width = shape.score_scale, shape.query_width, shape.mixed_width
        # The batch as it came in the last step, in its order, and where each of its rows lies.
        self._num_offered = 0
        self._sequence_ids: Ids = np.empty(0, np.int64)  # [W]
        self._lengths: Lengths = np.empty(0, np.int32)  # [W], the newest token included
        self._places: Ids = np.empty(0, np.int64)  # [W], workspace row of each
        self._column = 0  # of the newest token
        num_planes, num_kv_heads, head_dim = self._token
        self._data = torch.empty(pool.num_layers, num_planes, 0, num_kv_heads, 0, head_dim)  # [L, 2, rows, G, …, D]
        self._biases: list[torch.Tensor] = []  # of each reach [rows × G, 1, capacity], 0 or -inf
        # Views that stay the same until the batch changes, then those of one step.
        self._to_workspace: torch.Tensor | None = None  # int64 [W], None while the orders agree
        self._to_batch: torch.Tensor | None = None
        self._active_biases: list[torch.Tensor] = []
        self._query = torch.empty(0)  # [W, H D], within the memory of
        self._query_groups = self._query  # [P G, H / G, D]
        self._active_sinks: list[torch.Tensor | None] = [None] * pool.num_layers  # L × [P G, H / G, 1]
        # A step's qkv seen as [W, 2, G, D], or where values lie turned, as [W, G, D] of keys and of values.
        self._kv_view: tuple[tuple[int, ...], tuple[int, ...], int]
        self._value_view: tuple[tuple[int, ...], tuple[int, ...], int]
        self._operands: list[tuple[torch.Tensor, torch.Tensor]] = []  # L × keys [P G, D, capacity], values [P G, …, ·]
        # The column being written: [L, W, 2, G, D], or [L, W, G, D] of keys and of values.
        self._newest = self._newest_values = self._data
        self._newest_by_layer: tuple[torch.Tensor, ...] = ()
        self._newest_values_by_layer: tuple[torch.Tensor, ...] = ()
        self._stored = torch.empty(0)  # [L, W, 2 G D], a step's on the way to the pool

    def arrange(self, sequence_ids: Ids, context_lens: Lengths, block_tables: NDArray[np.int32]) -> int:
        """Make room for the new token of each row. Returns how many rows, from the first, the workspace takes."""
        num_rows = len(self._sequence_ids)
        is_unchanged = (
            len(sequence_ids) == self._num_offered
            and self._column + 1 < self._capacity
            and np.array_equal(sequence_ids[:num_rows], self._sequence_ids)
            and np.array_equal(context_lens[:num_rows], self._lengths + 1)
        )
        if is_unchanged:
            self._lengths += 1
            self._column += 1
        else:
            num_rows = self._recompose(sequence_ids, context_lens, block_tables)
        if num_rows == 0:
            return 0
        for index, reach in enumerate(self._reaches):
            self._show_newest(index, reach)
        if self._is_turned:
            self._newest = self._data[:, 0, :num_rows].select(3, self._column)
            self._newest_values = self._turned(self._data[:, 1, :num_rows]).select(4, self._column)
            self._newest_values_by_layer = self._newest_values.unbind(0)
        else:
            self._newest = self._data[:, :, :num_rows].select(4, self._column).transpose(1, 2)
        self._newest_by_layer = self._newest.unbind(0)
        return num_rows

    def _turned(self, values: torch.Tensor) -> torch.Tensor:
        """Memory [..., capacity, D] as values lie in it, [..., D, capacity]."""
        return values.flatten(-2).unflatten(-1, (self._token[-1], self._capacity))

    def _show_newest(self, index: int, reach: Reach) -> None:
        """One reach's bias moves on by a column."""
        bias, column = self._active_biases[index], self._column
        bias.select(2, column).zero_()
        if reach.window is not None and column >= reach.window:
            bias.select(2, column - reach.window).fill_(_HIDDEN)
        if reach.chunk is not None:
            for place in self._places[(self._lengths - 1) % reach.chunk == 0].tolist():
                self._bias_of(bias, place)[..., :column] = _HIDDEN

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [W, (H + 2 G) D], rotated, at the start of its storage -> [W, H ·].

        The step's keys and values are kept here; `store` takes them to the pool.
        """
        if self._to_workspace is not None:
            qkv = qkv.index_select(0, self._to_workspace)
        self._query.copy_(qkv[:, : self._query_width])
        self._newest_by_layer[layer].copy_(qkv.as_strided(*self._kv_view))
        if self._is_turned:
            self._newest_values_by_layer[layer].copy_(qkv.as_strided(*self._value_view))
        keys, values = self._operands[layer]
        bias = self._active_biases[self._reach_of[layer]]
        if self._is_alone:  # a matrix times a column: the product that packs neither
            scores = torch.baddbmm(bias.mT, keys.mT, self._query_groups.mT, alpha=self._scale)  # [P G, capacity, 1]
            weights = torch.softmax(scores.view(bias.shape), -1)  # [P G, 1, capacity]
        elif self._is_plain:
            scores = torch.baddbmm(bias, self._query_groups, keys, alpha=self._scale)  # [P G, H / G, capacity]
            weights = torch.softmax(scores, -1)
        else:
            scores = torch.bmm(self._query_groups, keys).mul_(self._scale)
            weights = weigh(scores, bias, self._shape.softcap, self._active_sinks[layer])
        mixed = torch.bmm(weights, values).view(-1, self._mixed_width)[: qkv.shape[0]]  # [W, H ·]
        if mixed.dtype != qkv.dtype:
            mixed = mixed.to(qkv.dtype)
        return mixed if self._to_batch is None else mixed.index_select(0, self._to_batch)

    def store(self, slot_mapping: torch.Tensor) -> None:
        """Write the step's keys and values of all layers to the pool at int64 slot_mapping [W], once all attended."""
        if self._to_workspace is not None:
            slot_mapping = slot_mapping.index_select(0, self._to_workspace)
        if self._is_turned:
            keys, values = self._stored.unflatten(2, self._token).unbind(2)  # [L, W, G, D]
            keys.copy_(self._newest)
            values.copy_(self._newest_values)
            self._pool.index_copy_(1, slot_mapping, self._stored)
        else:
            self._slots.index_copy_(1, slot_mapping, self._newest.to(self._pool_dtype))

    @property
    def _capacity(self) -> int:
        return self._data.shape[4]

    def _recompose(self, sequence_ids: Ids, context_lens: Lengths, block_tables: NDArray[np.int32]) -> int:
        """Adopt a batch of other rows, or of more tokens than there are columns for."""
        self._num_offered = len(sequence_ids)
        if len(sequence_ids) == 0:
            return self._drop_all()
        history = np.max([reach.num_seen(context_lens) for reach in self._reaches], axis=0) - 1  # tokens to copy
        num_rows = min(len(sequence_ids), self._max_rows(int(history.max())))
        if num_rows == 0:
            return self._drop_all()
        places = self._keep(sequence_ids[:num_rows], context_lens[:num_rows], history[:num_rows])
        if places is None:
            self._allocate(num_rows, int(history[:num_rows].max()))
            places = np.full(num_rows, -1, np.int64)
        free = np.setdiff1d(np.arange(num_rows), places)
        for row, place in zip(np.flatnonzero(places < 0).tolist(), free.tolist(), strict=True):
            self._fill(place, block_tables[row], int(context_lens[row]) - 1, int(history[row]))
            places[row] = place
        self._sequence_ids, self._lengths = sequence_ids[:num_rows].copy(), context_lens[:num_rows].copy()
        self._places = places
        self._make_views(num_rows)
        return num_rows

    def wipe(self) -> None:
        """Between steps: overwrite every row; what is needed again is copied from the pool."""
        self._data.zero_()
        self._query.zero_()
        self._num_offered = -1
        self._drop_all()

    def _drop_all(self) -> int:
        self._sequence_ids, self._lengths, self._places = self._sequence_ids[:0], self._lengths[:0], self._places[:0]
        return 0

    def _keep(self, sequence_ids: Ids, context_lens: Lengths, history: Lengths) -> Ids | None:
        """Where rows already here will lie, -1 for new ones. None if the columns or rows do not suffice.

        Advances to the next column and closes the gaps of rows that left.
        """
        num_rows, column, longest = len(sequence_ids), self._column + 1, int(history.max())
        has_room = column < self._capacity and num_rows <= self._data.shape[2] and longest <= column
        if not has_room or _capacity_for(longest) * 2 <= self._capacity:
            return None
        known = {
            sequence_id: (place, length)
            for sequence_id, place, length in zip(
                self._sequence_ids.tolist(), self._places.tolist(), self._lengths.tolist(), strict=True
            )
        }
        places = np.full(num_rows, -1, np.int64)
        for row, (sequence_id, context_len) in enumerate(
            zip(sequence_ids.tolist(), context_lens.tolist(), strict=True)
        ):
            place, length = known.get(sequence_id, (-1, 0))
            places[row] = place if length + 1 == context_len else -1
        self._column = column
        gaps = np.setdiff1d(np.arange(num_rows), places)
        for row, gap in zip(np.flatnonzero(places >= num_rows).tolist(), gaps.tolist(), strict=False):
            place = int(places[row])
            self._data[:, :, gap].copy_(self._data[:, :, place])
            for bias in self._biases:
                self._bias_of(bias, gap).copy_(self._bias_of(bias, place))
            places[row] = gap
        return places

    def _allocate(self, num_rows: int, longest: int) -> None:
        """Empty rows, all hidden, wide enough for `longest` tokens of history and some steps more."""
        capacity = _capacity_for(longest)
        max_rows = max(num_rows, min(-(-num_rows // _ROW_STEP) * _ROW_STEP, self._max_rows(longest)))
        is_small = max_rows * capacity <= _MAX_FLOAT32_POSITIONS
        dtype = torch.float32 if is_small else self._pool_dtype
        num_planes, num_kv_heads, head_dim = self._token
        wanted = (len(self._blocks), num_planes, max_rows, num_kv_heads, capacity, head_dim)
        if self._data.shape == wanted and self._data.dtype == dtype:
            self._data.zero_()
        else:
            # Release the old memory before taking the new.
            self._operands, self._newest_by_layer, self._newest_values_by_layer = [], (), ()
            self._data = self._newest = self._newest_values = torch.empty(0)
            self._data = torch.zeros(wanted, dtype=dtype)
        self._is_turned = num_planes == 2 and dtype == torch.bfloat16
        hidden = torch.full((max_rows * num_kv_heads, 1, capacity), _HIDDEN, dtype=dtype)
        self._biases = [hidden.clone() for _ in self._reaches]
        self._column = longest

    def _fill(self, place: int, block_table: NDArray[np.int32], num_stored: int, history: int) -> None:
        """Copy the last `history` of a sequence's `num_stored` tokens from the pool to before the newest column."""
        for reach, bias in zip(self._reaches, self._biases, strict=True):
            num_seen = int(reach.num_seen(np.array([num_stored + 1], np.int32))[0])  # the newest token included
            row_bias = self._bias_of(bias, place)
            row_bias.fill_(_HIDDEN)
            row_bias[..., self._column + 1 - num_seen : self._column] = 0
        first = self._column - history
        row = self._data[:, :, place]  # [L, 2, G, capacity, D]
        planes = [row[:, 0], self._turned(row[:, 1]).mT] if self._is_turned else [row]  # [L, (2,) G, capacity, D]
        for plane in planes:  # what is hidden must be finite all the same: its weight is 0, not its product
            plane[..., :first, :] = 0
        if history == 0:
            return
        first_token = num_stored - history
        first_block, last_block = first_token // self._block_size, -(-num_stored // self._block_size)
        block_ids = torch.from_numpy(block_table[first_block:last_block]).long()
        tokens = self._blocks.index_select(1, block_ids).view(len(self._blocks), -1, *self._token)
        offset = first_token - first_block * self._block_size
        tokens = tokens[:, offset : offset + history]  # [L, history, 2, G, D]
        tokens = tokens.permute(0, 2, 3, 1, 4)  # [L, 2, G, history, D]
        for plane, part in zip(planes, tokens.unbind(1) if self._is_turned else [tokens], strict=True):
            plane[..., first : self._column, :].copy_(part)

    def _make_views(self, num_rows: int) -> None:
        shape, (_, num_kv_heads, head_dim) = self._shape, self._token
        num_padded = num_rows
        if self._data.dtype == torch.bfloat16:
            num_padded = min(-(-num_rows // _ROW_STEP) * _ROW_STEP, self._data.shape[2])
        self._active_biases = [bias[: num_padded * num_kv_heads] for bias in self._biases]
        if self._sinks:
            grouped = [sink.view(num_kv_heads, -1, 1).to(self._data.dtype) for sink in self._sinks]
            self._active_sinks = [sink.repeat(num_padded, 1, 1) for sink in grouped]
        query = torch.zeros(num_padded, shape.query_width, dtype=self._data.dtype)
        self._query, self._query_groups = query[:num_rows], query.view(num_padded * num_kv_heads, -1, head_dim)
        self._is_alone = self._is_plain and self._is_turned and shape.num_heads == num_kv_heads
        self._stored = torch.empty(len(self._blocks), num_rows, shape.kv_width, dtype=self._pool_dtype)
        plane, strides = num_kv_heads * head_dim, (shape.query_width + shape.kv_width, head_dim, 1)
        if self._is_turned:
            self._kv_view = ((num_rows, num_kv_heads, head_dim), strides, shape.query_width)
            self._value_view = ((num_rows, num_kv_heads, head_dim), strides, shape.query_width + plane)
        else:
            self._kv_view = ((num_rows, *self._token), (strides[0], plane, *strides[1:]), shape.query_width)
        self._operands = [
            (layer[0, :num_padded].flatten(0, 1).transpose(1, 2), layer[-1, :num_padded].flatten(0, 1))
            for layer in self._data.unbind(0)
        ]
        if self._is_turned:
            self._operands = [(keys, self._turned(values).mT) for keys, values in self._operands]
        if shape.value_dim is not None:
            self._operands = [(keys, values[..., : shape.value_dim]) for keys, values in self._operands]
        if np.array_equal(self._places, np.arange(num_rows)):
            self._to_workspace = self._to_batch = None
        else:
            self._to_workspace = torch.from_numpy(np.argsort(self._places))
            self._to_batch = torch.from_numpy(self._places)

    def _bias_of(self, bias: torch.Tensor, place: int) -> torch.Tensor:
        num_kv_heads = self._shape.num_kv_heads
        return bias[place * num_kv_heads : (place + 1) * num_kv_heads]

    def _max_rows(self, longest: int) -> int:
        elements = self._blocks.shape[0] * self._shape.kv_width * _capacity_for(longest)
        return self._max_bytes // (4 * elements)


def _capacity_for(longest: int) -> int:
    """Columns for a longest history: room for an eighth more before everything is copied again."""
    needed = longest + 1 + max(32, longest // 8)
    return -(-needed // _COLUMN_STEP) * _COLUMN_STEP
