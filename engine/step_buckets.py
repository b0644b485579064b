"""Buckets: the fixed shapes of steps on a device, and the layout of the one buffer that a step uploads.

A captured graph works on fixed shapes, so a step is padded to the next larger bucket. The buffer has int32 fields, one
behind the other; padding never changes what a real row computes.

Letters: T tokens, K rows of logits, D rows that decode, C chunks of prompts, U changed entries of block tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from engine.arrays import Ints, ceil_div
from engine.sampling.packed import NUM_COLUMNS

_ALIGNED = 4  # int32 numbers; kernels are compiled for fields that start at multiples of 16 bytes
# Tokens of mixed steps. Matrix products of 448 and 576 rows take longer than those of 512 and 640 on an H100, by up to
# 50 %: see `products_bf16` in bench/device/results.
_MIXED_TOKENS = (64, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
_MIXED_STEP = 512  # distance between larger ones
_ROWS_STEP = 32  # distance between buckets of decode steps above 64 rows
NUM_UPDATES = 256  # changed block table entries that fit into the buffer; more are uploaded separately


@dataclass(frozen=True)
class Bucket:
    """The shape of a step, padded or not."""

    num_tokens: int  # T
    num_rows: int  # K
    num_decodes: int  # D
    num_chunks: int  # C

    @property
    def is_decode(self) -> bool:
        """True if every row has one token and samples."""
        return self.num_tokens == self.num_rows == self.num_decodes and not self.num_chunks

    @cached_property
    def fields(self) -> dict[str, slice]:
        """Return the position of each field in the buffer.

        | Field | Numbers | Meaning | Padding |
        |---|---|---|---|
        | `token_ids` | T | -1: the token that the previous step sampled in the token's slot | 0 |
        | `positions` | T | | 0 |
        | `slot_mapping` | T | where the token's KV is stored | -1 |
        | `token_slots` | T | the slot of the token's sequence | 0 |
        | `logit_rows` | K | index of a token | 0 |
        | `row_slots` | K | the slot in which a row's token is remembered | -1 |
        | `sampling` | columns × K | see `engine.sampling.packed` | 0 |
        | `decode_plan` | 3 D | see `engine.kernels.launch.DevicePlan` | 0 |
        | `chunk_plan` | 4 C | see `engine.kernels.launch.DevicePlan` | 0 |
        | `update_entries` | U | index of an entry among all block tables | the entry behind the last |
        | `update_blocks` | U | the entry's new block | 0 |
        """
        sizes = {
            "token_ids": self.num_tokens,
            "positions": self.num_tokens,
            "slot_mapping": self.num_tokens,
            "token_slots": self.num_tokens,
            "logit_rows": self.num_rows,
            "row_slots": self.num_rows,
            "sampling": NUM_COLUMNS * self.num_rows,
            "decode_plan": 3 * self.num_decodes,
            "chunk_plan": 4 * self.num_chunks,
            "update_entries": NUM_UPDATES,
            "update_blocks": NUM_UPDATES,
        }
        found, start = {}, 0
        for name, size in sizes.items():
            found[name] = slice(start, start + size)
            start += ceil_div(size, _ALIGNED) * _ALIGNED
        return found

    @cached_property
    def num_ints(self) -> int:
        """The buffer's size."""
        last: int = self.fields["update_blocks"].stop
        return ceil_div(last, _ALIGNED) * _ALIGNED

    def views(self, buffer: Ints) -> dict[str, Ints]:
        """Return the fields of a buffer on the host."""
        return {name: buffer[part] for name, part in self.fields.items()}


class Buckets:
    """The buckets of one model, for steps of at most `max_tokens` tokens and `max_rows` rows."""

    def __init__(self, max_tokens: int, max_rows: int, tokens_per_chunk: int) -> None:
        self._max_tokens, self._tokens_per_chunk = max_tokens, tokens_per_chunk
        self._max_rows = self._padded_rows(max_rows)

    def find(self, shape: Bucket) -> Bucket | None:
        """Return the smallest bucket that fits, or None for a step that runs in its own shape."""
        if shape.is_decode:
            rows = self._padded_rows(shape.num_rows)
            return Bucket(rows, rows, rows, 0) if rows <= self._max_rows else None
        num_tokens = self._padded_tokens(shape.num_tokens)
        num_rows = min(num_tokens, self._max_rows)
        num_chunks = ceil_div(num_tokens, self._tokens_per_chunk) + num_rows // 4
        fits = shape.num_rows <= num_rows and shape.num_decodes <= num_rows and shape.num_chunks <= num_chunks
        is_large = shape.num_tokens > self._max_tokens
        return Bucket(num_tokens, num_rows, num_rows, num_chunks) if fits and not is_large else None

    def first(self) -> list[Bucket]:
        """Return the buckets that are captured before a model is ready: the most frequent ones."""
        decode = (Bucket(rows, rows, rows, 0) for rows in (1, self._max_rows))
        mixed = (Bucket(tokens, 1, 0, 1) for tokens in (min(256, self._max_tokens), self._max_tokens))
        found = [self.find(shape) for shape in (*decode, *mixed)]
        return list(dict.fromkeys(bucket for bucket in found if bucket is not None))

    def largest(self) -> int:
        """Return the size of the largest buffer of any bucket, in int32 numbers."""
        rows = self._max_rows
        tokens = self._padded_tokens(max(self._max_tokens, rows))
        return Bucket(tokens, rows, rows, ceil_div(tokens, self._tokens_per_chunk) + rows).num_ints

    @staticmethod
    def _padded_tokens(num_tokens: int) -> int:
        fitting = [size for size in _MIXED_TOKENS if size >= num_tokens]
        return fitting[0] if fitting else ceil_div(num_tokens, _MIXED_STEP) * _MIXED_STEP

    @staticmethod
    def _padded_rows(num_rows: int) -> int:
        return 1 << (num_rows - 1).bit_length() if num_rows <= 64 else ceil_div(num_rows, _ROWS_STEP) * _ROWS_STEP
