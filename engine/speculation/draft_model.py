"""Drafter by a smaller model with the same tokenizer: for each sequence the tokens that it finds likeliest.

It keeps keys and values of its own for the few sequences guessed for at a time, in one fixed place for each, and
catches up on what it has not read when a sequence comes, or comes back. What it wrote for guesses that turned out wrong
is found by comparing tokens and written again. It stops where it is not sure. Knows tokens and a forward pass, no
sampling.

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

_LEAST_SURE = 0.4  # probability below which a guess is not worth its step
_CATCH_UP_TOKENS = 256  # read at a time: what a step may be late for a sequence that comes


class ForwardRunner(Protocol):
    """What a Runner offers of itself."""

    block_size: int
    max_model_len: int

    def forward(self, inputs: StepInputs) -> torch.Tensor: ...


def blocks_for(num_places: int, max_model_len: int, block_size: int) -> int:
    """The KV pool that a draft model for as many sequences at a time needs."""
    return num_places * ceil_div(max_model_len, block_size)


class DraftModel:
    """See `engine.speculation.speculator.Drafter`. `runner` has `blocks_for(num_places, …)` blocks, all its own."""

    def __init__(self, runner: ForwardRunner, num_places: int) -> None:
        self._runner = runner
        self._max_model_len = runner.max_model_len
        blocks_each = ceil_div(runner.max_model_len, runner.block_size)
        self._first_slot = np.arange(num_places) * blocks_each * runner.block_size
        self._block_tables = np.arange(num_places * blocks_each, dtype=np.int32).reshape(num_places, blocks_each)
        self._tokens = np.full((num_places, runner.max_model_len), -1, dtype=np.int32)  # whose KV is written
        self._num_written = np.zeros(num_places, dtype=np.int64)
        self._owner: list[int] = [0] * num_places
        self._used_at = [0] * num_places
        self._now = 0

    def propose(self, asked: Sequence[DraftRequest]) -> list[Ints]:
        self._now += 1
        guesses: list[list[int]] = [[] for _ in asked]
        places = [self._place_of(each.sequence_id) for each in asked]
        limits = [min(each.most, self._max_model_len - len(each.token_ids)) for each in asked]
        unread = [self._unread(place, each.token_ids) for place, each in zip(places, asked, strict=True)]
        rows = [row for row, limit in enumerate(limits) if limit > 0]
        while rows:
            parts = [unread[row][:_CATCH_UP_TOKENS] for row in rows]
            likeliest, is_sure = self._read([places[row] for row in rows], parts)
            following = []
            for row, part, token_id, sure in zip(rows, parts, likeliest, is_sure, strict=True):
                if len(part) == len(unread[row]) and sure:
                    guesses[row].append(token_id)
                    unread[row] = np.array([token_id], dtype=np.int32)
                    if len(guesses[row]) < limits[row]:
                        following.append(row)
            rows = following
        return [np.array(guess, dtype=np.int32) for guess in guesses]

    def _place_of(self, sequence_id: int) -> int:
        """Its place; the one that was not used for longest, if it has none."""
        if sequence_id in self._owner:
            place = self._owner.index(sequence_id)
        else:
            place = self._used_at.index(min(self._used_at))
            self._owner[place], self._num_written[place] = sequence_id, 0
        self._used_at[place] = self._now
        return place

    def _unread(self, place: int, token_ids: Ints) -> Ints:
        """The tokens from the first on that is not written as it should be; always the last one."""
        most = min(int(self._num_written[place]), len(token_ids) - 1, self._max_model_len)
        is_same = self._tokens[place, :most] == token_ids[:most]
        num_known = most if is_same.all() else int(is_same.argmin())
        self._num_written[place] = num_known
        return token_ids[num_known:]

    def _read(self, places: list[int], parts: list[Ints]) -> tuple[list[int], list[bool]]:
        """Write the KV of the next tokens of each place. Returns what is likeliest to follow, and whether surely so."""
        at = np.array(places)
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
            sequence_ids=np.array([self._owner[place] for place in places], dtype=np.int64),
            num_decode_rows=0,
            has_drafts=True,
            sampling=NO_SAMPLING,
        )
        probabilities, likeliest = self._runner.forward(step).softmax(-1).max(-1)  # [R]
        return likeliest.tolist(), (probabilities >= _LEAST_SURE).tolist()
