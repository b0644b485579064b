"""Draft model: a smaller model with the same tokenizer proposes the tokens that it finds most likely.

It has its own KV cache with a fixed row for each of the few sequences that get drafts at a time. It reads the tokens
it has not seen when a sequence first comes or returns. KV of rejected drafts is found by comparing tokens and
overwritten. A draft ends where the model is not confident. Samples nothing.

Letters: R rows, T tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from engine.arrays import Ints, ceil_div, segment_offsets
from engine.inputs import NO_SAMPLING, StepInputs
from engine.speculation.speculator import DraftRequest

_MIN_PROBABILITY = 0.4  # a less likely token is not worth drafting
_CATCH_UP_TOKENS = 256  # read in one forward pass; limits the delay that a new sequence causes


class ForwardRunner(Protocol):
    """The part of Runner that a draft model uses."""

    block_size: int
    max_model_len: int

    def forward(self, inputs: StepInputs) -> torch.Tensor: ...


def blocks_for(max_sequences: int, max_model_len: int, block_size: int) -> int:
    """Return the number of KV blocks of a draft model that drafts for `max_sequences` at a time."""
    return max_sequences * ceil_div(max_model_len, block_size)


class DraftModel:
    """A drafter. Implements `engine.speculation.speculator.Drafter`.

    `runner` has `blocks_for(max_sequences, …)` blocks, used by nothing else.
    """

    def __init__(self, runner: ForwardRunner, max_sequences: int) -> None:
        self._runner = runner
        self._max_model_len = runner.max_model_len
        blocks_each = ceil_div(runner.max_model_len, runner.block_size)
        self._first_slot = np.arange(max_sequences) * blocks_each * runner.block_size
        self._block_tables = np.arange(max_sequences * blocks_each, dtype=np.int32).reshape(max_sequences, blocks_each)
        self._tokens = np.full((max_sequences, runner.max_model_len), -1, dtype=np.int32)  # tokens whose KV is written
        self._num_written = np.zeros(max_sequences, dtype=np.int64)
        self._owner: list[int] = [0] * max_sequences
        self._used_at = [0] * max_sequences
        self._now = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Ints]:
        self._now += 1
        drafts: list[list[int]] = [[] for _ in requests]
        cache_rows = [self._cache_row_of(each.sequence_id) for each in requests]
        limits = [min(each.max_tokens, self._max_model_len - len(each.token_ids)) for each in requests]
        unread = [self._unread(cache_row, each.token_ids) for cache_row, each in zip(cache_rows, requests, strict=True)]
        rows = [row for row, limit in enumerate(limits) if limit > 0]
        while rows:
            parts = [unread[row][:_CATCH_UP_TOKENS] for row in rows]
            likeliest, is_confident = self._read([cache_rows[row] for row in rows], parts)
            results = zip(rows, parts, likeliest, is_confident, strict=True)
            drafted = {row: token for row, part, token, sure in results if sure and len(part) == len(unread[row])}
            for row, token_id in drafted.items():
                drafts[row].append(token_id)
                unread[row] = np.array([token_id], dtype=np.int32)
            rows = [row for row in drafted if len(drafts[row]) < limits[row]]
        return [np.array(draft, dtype=np.int32) for draft in drafts]

    def _cache_row_of(self, sequence_id: int) -> int:
        """Return the sequence's row of the KV cache, or assign the least recently used one."""
        if sequence_id in self._owner:
            cache_row = self._owner.index(sequence_id)
        else:
            cache_row = self._used_at.index(min(self._used_at))
            self._owner[cache_row], self._num_written[cache_row] = sequence_id, 0
        self._used_at[cache_row] = self._now
        return cache_row

    def _unread(self, cache_row: int, token_ids: Ints) -> Ints:
        """Return the tokens from the first one whose KV is missing or outdated; always at least the last token."""
        limit = min(int(self._num_written[cache_row]), len(token_ids) - 1, self._max_model_len)
        is_same = self._tokens[cache_row, :limit] == token_ids[:limit]
        num_valid = limit if is_same.all() else int(is_same.argmin())
        self._num_written[cache_row] = num_valid
        return token_ids[num_valid:]

    def _read(self, cache_rows: list[int], parts: list[Ints]) -> tuple[list[int], list[bool]]:
        """Write the KV of each row's next tokens; return the most likely following tokens, and which are confident."""
        at = np.array(cache_rows)
        num_tokens = np.array([len(part) for part in parts], dtype=np.int32)
        starts = self._num_written[at]
        ends = np.cumsum(num_tokens)
        positions = np.repeat(starts, num_tokens) + segment_offsets(num_tokens)  # int64 [T]
        token_ids = np.concatenate(parts)
        self._tokens[np.repeat(at, num_tokens), positions] = token_ids
        self._num_written[at] += num_tokens
        step = StepInputs(
            token_ids=torch.from_numpy(token_ids.astype(np.int64)),
            positions=torch.from_numpy(positions),
            slot_mapping=torch.from_numpy(np.repeat(self._first_slot[at], num_tokens) + positions),
            logit_rows=torch.from_numpy(ends.astype(np.int64) - 1),
            query_starts=np.concatenate([[0], ends]).astype(np.int32),
            context_lens=(starts + num_tokens).astype(np.int32),
            block_tables=self._block_tables[at],
            sequence_ids=np.array([self._owner[cache_row] for cache_row in cache_rows], dtype=np.int64),
            num_decode_rows=0,
            sampling=NO_SAMPLING,
        )
        probabilities, likeliest = self._runner.forward(step).softmax(-1).max(-1)  # [R]
        return likeliest.tolist(), (probabilities >= _MIN_PROBABILITY).tolist()
