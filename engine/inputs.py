"""Scheduled sequences -> index arrays: the bridge from the host wing's slot table to the device wing's step.

The only file that builds them. Reads the table's columns, never changes them; knows no policy and no weights. Host
facts (lengths, block tables) stay NumPy, since the CPU path decides shapes with them; what is used as an index into
device tensors is a torch tensor over the same memory.

Letters: R rows (sequences in this step), T tokens given to forward, K rows that sample, S slots of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import Floats, Ints, Longs

if TYPE_CHECKING:
    from engine.scheduling.sequence import SlotTable
    from engine.scheduling.step_budget import ScheduledStep


@dataclass(frozen=True, eq=False)
class TokenHistory:
    """What one penalised row has seen: prompt and completion so far, and where the completion begins."""

    row: int  # index among the K sampling rows
    token_ids: Ints
    num_prompt: int


@dataclass(frozen=True, eq=False)
class LogitBias:
    """What is added to some logits of one sampling row."""

    row: int  # index among the K sampling rows
    token_ids: Ints  # each once
    values: Floats


class ConstrainedRows(Protocol):
    """The rows among the K sampling rows whose text is constrained by a grammar. A mask is [bytes], one bit per token
    that is allowed, lowest bit first, with at least V bits."""

    def initial_masks(self, is_filtered: NDArray[np.bool_]) -> tuple[list[int], NDArray[np.uint8]]:
        """Return the R rows that must sample under a mask at once, and their masks [R, bytes]. `is_filtered` [K]: rows
        whose sampling depends on the probabilities of other tokens. The other rows sample from all tokens first."""

    def accept(self, token_ids: Ints, is_failed: NDArray[np.bool_]) -> list[int]:
        """Accept the sampled tokens [K]. Tokens that a grammar forces are written over the sampled ones, and rows whose
        grammar failed are marked. Returns the R rows whose token is rejected: they sample again under
        `rejected_masks`, and the result goes to `accept_resampled`."""

    def rejected_masks(self) -> NDArray[np.uint8]:
        """[R, bytes]"""

    def accept_resampled(self, token_ids: Ints, is_failed: NDArray[np.bool_]) -> None:
        """See `accept`."""


class ConstraintSource(Protocol):
    """Who knows the constrained sequences."""

    def begin(self, sequence_ids: Longs, remaining: Ints) -> ConstrainedRows | None:
        """Of K rows that will sample, with `remaining` [K] tokens to draw; None if no row is constrained."""


@dataclass(frozen=True, eq=False)
class SamplingInputs:
    """How each of the K sampling rows chooses its token.

    `positions` is the index of the token being drawn, counted from the start of the prompt: with `seeds` it names the
    random number, so a row draws the same whatever its batch mates are. `histories` holds only the rows that have a
    penalty, `biases` those that have one (or two). `num_logprobs` is -1 where none are asked, `constrained` None if no
    row is.
    """

    temperature: Floats  # [K], 0 is greedy
    top_k: Ints  # [K], 0 is off
    top_p: Floats  # [K], 1 is off
    min_p: Floats  # [K], 0 is off
    repetition_penalty: Floats  # [K], 1 is off
    presence_penalty: Floats  # [K], 0 is off
    frequency_penalty: Floats  # [K], 0 is off
    seeds: NDArray[np.uint64]  # [K]
    positions: Longs  # [K]
    num_logprobs: Ints  # [K]
    histories: tuple[TokenHistory, ...]
    biases: tuple[LogitBias, ...] = ()
    constrained: ConstrainedRows | None = None

    @property
    def num_rows(self) -> int:
        return len(self.temperature)

    @cached_property
    def is_filtered(self) -> NDArray[np.bool_]:
        """[K], whose draw is from some of the likeliest tokens only."""
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)


@dataclass(frozen=True, eq=False)
class PromptLogprobRows:
    """P tokens of prompts whose log-probabilities are wanted: the logits of the tokens before them are computed beside
    those of the K rows that sample, L = K + P in all, in the order of the step's tokens."""

    sampled: Longs  # [K], the sampling rows' places among the L
    rows: Longs  # [P], those of the tokens before the wanted ones
    token_ids: Ints  # [P]
    num_tops: int  # the likeliest tokens that are wanted with each
    sequences: tuple[tuple[int, int, int], ...]  # slot, sequence id and how many of the P, in their order


@dataclass(frozen=True, eq=False)
class TokenLogprobs:
    """The log-probabilities of P tokens, and the likeliest at each of their places."""

    logprobs: Floats  # [P]
    top_ids: Ints  # [P, most wanted]
    top_logprobs: Floats  # [P, most wanted]


@dataclass(frozen=True, eq=False)
class StepInputs:
    """Everything one forward pass needs beside weights and KV cache. Rows keep the order of the scheduled step.

    The first `num_decode_rows` rows have one token each. `sequence_ids` never repeat during an engine's life: a runner
    may remember by them what it has computed.
    """

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    slot_mapping: torch.Tensor  # int64 [T], block id × block size + offset of each token's own KV
    logit_rows: torch.Tensor  # int64 [K], index into T of each sampling row's last token; [L] with `scored`
    query_starts: Ints  # [R + 1], where each row's tokens begin in T
    context_lens: Ints  # [R], tokens with KV once this step is done
    block_tables: Ints  # [R, max blocks], only the first ceil(context_len / block size) of a row mean anything
    sequence_ids: Longs  # [R]
    num_decode_rows: int
    sampling: SamplingInputs
    adapters: Ints | None = None  # [R], handles, 0 for none; None if no row has one
    has_drafts: bool = False  # whether rows may have tokens that are guesses: wrong ones come again, as others
    scored: PromptLogprobRows | None = None

    @property
    def num_rows(self) -> int:
        return len(self.context_lens)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, eq=False)
class StepOutput:
    """What the K sampling rows drew, in their order.

    `is_failed` marks rows whose logits were not finite or whose constraint failed: their token means nothing and the
    sequence must end with an error. The logprob arrays are there only when some row asked; they are of the distribution
    before temperature, penalties and constraints. `top_ids` is -1 beyond what a row asked for.
    """

    token_ids: Ints  # [K]
    is_failed: NDArray[np.bool_] | None = None  # [K]
    logprobs: Floats | None = None  # [K]
    top_ids: Ints | None = None  # [K, most asked]
    top_logprobs: Floats | None = None  # [K, most asked]
    scores: TokenLogprobs | None = None  # of the step's `scored`

    def only(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> StepOutput:
        """Of those of the K rows that are marked or listed; a copy."""
        columns = (self.is_failed, self.logprobs, self.top_ids, self.top_logprobs)
        kept: list[Any] = [None if column is None else column[rows] for column in columns]
        return StepOutput(self.token_ids[rows], *kept)


_NO_FLOATS, _NO_INTS = np.empty(0, np.float32), np.empty(0, np.int32)
NO_SAMPLING = SamplingInputs(  # of no rows
    temperature=_NO_FLOATS,
    top_k=_NO_INTS,
    top_p=_NO_FLOATS,
    min_p=_NO_FLOATS,
    repetition_penalty=_NO_FLOATS,
    presence_penalty=_NO_FLOATS,
    frequency_penalty=_NO_FLOATS,
    seeds=np.empty(0, np.uint64),
    positions=np.empty(0, np.int64),
    num_logprobs=_NO_INTS,
    histories=(),
)


def warming_step(num_tokens: int) -> StepInputs:
    """A step of nobody's: one row from position 0 on, whose tokens go to block 0 and which draws greedily."""
    return StepInputs(
        token_ids=torch.zeros(num_tokens, dtype=torch.int64),
        positions=torch.arange(num_tokens),
        slot_mapping=torch.arange(num_tokens),
        logit_rows=torch.tensor([num_tokens - 1]),
        query_starts=np.array([0, num_tokens], np.int32),
        context_lens=np.array([num_tokens], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        sequence_ids=np.zeros(1, np.int64),
        num_decode_rows=int(num_tokens == 1),
        sampling=NO_SAMPLING,
    )


def build(step: ScheduledStep, table: SlotTable, constraints: ConstraintSource | None = None) -> StepInputs:
    """Index arrays for `step`. Costs a handful of NumPy calls whatever the batch is."""
    slots, num_tokens = step.slots, step.num_tokens
    starts = table.num_computed[slots]  # int32 [R]
    context_lens = starts + num_tokens
    query_starts = np.zeros(len(slots) + 1, dtype=np.int32)
    np.cumsum(num_tokens, out=query_starts[1:])
    if query_starts[-1] == len(slots):  # one token a row: a decode step
        token_slots, positions = slots, starts.astype(np.int64)
        num_decode_rows = len(slots)
    else:
        token_slots = np.repeat(slots, num_tokens)  # [T]
        positions = np.arange(query_starts[-1]) + np.repeat(starts - query_starts[:-1], num_tokens)  # int64 [T]
        num_decode_rows = int(np.argmax(num_tokens > 1))
    block_size = table.block_size
    block_ids = table.block_table[token_slots, positions // block_size]  # int32 [T]
    slot_mapping = block_ids.astype(np.int64) * block_size + positions % block_size
    scored = None
    if step.num_drafts is None:
        sampled = np.flatnonzero(context_lens == table.length[slots])  # [K], rows whose last known token is in here
        logit_rows = query_starts[sampled + 1].astype(np.int64) - 1
        sampling = _sampling(slots[sampled], table.length[slots[sampled]], table, constraints)
        if table.num_prompt_logprobs:
            logit_rows, scored = _scored(step, query_starts, logit_rows, table)
    else:  # every row decodes, and draws at each of its tokens
        logit_rows = np.arange(len(positions))
        sampling = _sampling(token_slots, (positions + 1).astype(np.int32), table, constraints)
    return StepInputs(
        token_ids=torch.from_numpy(table.token_ids[token_slots, positions].astype(np.int64)),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(slot_mapping),
        logit_rows=torch.from_numpy(logit_rows),
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=table.block_table[slots],
        sequence_ids=table.sequence_id[slots],
        num_decode_rows=num_decode_rows,
        sampling=sampling,
        adapters=_adapters(slots, table) if table.has_adapters else None,
        has_drafts=step.num_drafts is not None,
        scored=scored,
    )


def _scored(
    step: ScheduledStep, query_starts: Ints, sampled: Longs, table: SlotTable
) -> tuple[Longs, PromptLogprobRows | None]:
    """The rows of T whose logits are needed, `sampled` [K] and those before wanted tokens, and what they are for."""
    rows, token_ids, sequences, num_tops = [], [], [], 0
    for index, slot in enumerate(step.slots.tolist()):
        known = table.num_prompt_logprobs.get(slot)
        if known is None:
            continue
        start = int(table.num_computed[slot])
        first = max(start, known - 1)  # a token is scored at the position before it
        last = min(start + int(step.num_tokens[index]), int(table.num_prompt[slot]) - 1)
        if first < last:
            rows.append(int(query_starts[index]) + np.arange(first - start, last - start))
            token_ids.append(table.token_ids[slot, first + 1 : last + 1].copy())
            sequences.append((slot, int(table.sequence_id[slot]), last - first))
            num_tops = max(num_tops, int(table.num_logprobs[slot]))
    if not rows:
        return sampled, None
    scored = np.concatenate(rows)
    every = np.sort(np.concatenate([sampled, scored]))  # [L]
    places = np.searchsorted(every, sampled), np.searchsorted(every, scored)
    return every, PromptLogprobRows(*places, np.concatenate(token_ids), num_tops, tuple(sequences))


def _adapters(slots: Ints, table: SlotTable) -> Ints | None:
    handles = table.adapter[slots]
    return handles if handles.any() else None


def _sampling(slots: Ints, lengths: Ints, table: SlotTable, constraints: ConstraintSource | None) -> SamplingInputs:
    """The sampling columns of the K rows in `slots`, each of which draws its token number `lengths` [K]."""
    constrained = None
    if constraints is not None:
        constrained = constraints.begin(table.sequence_id[slots], table.max_total_len[slots] - lengths)
    repetition = table.repetition_penalty[slots]
    presence = table.presence_penalty[slots]
    frequency = table.frequency_penalty[slots]
    penalised = np.flatnonzero((repetition != 1) | (presence != 0) | (frequency != 0))
    histories = tuple(
        TokenHistory(
            row=int(row),
            token_ids=table.token_ids[slots[row], : lengths[row]],
            num_prompt=int(table.num_prompt[slots[row]]),
        )
        for row in penalised
    )
    return SamplingInputs(
        temperature=table.temperature[slots],
        top_k=table.top_k[slots],
        top_p=table.top_p[slots],
        min_p=table.min_p[slots],
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        seeds=table.seed[slots],
        positions=lengths.astype(np.int64),
        num_logprobs=table.num_logprobs[slots],
        histories=histories,
        biases=_biases(slots, lengths, table) if table.logit_biases or table.held_ends else (),
        constrained=constrained,
    )


def _biases(slots: Ints, lengths: Ints, table: SlotTable) -> tuple[LogitBias, ...]:
    """Those of the K rows in `slots`: their own, and what keeps a row from ending too soon."""
    found = []
    for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
        bias, ends = table.logit_biases.get(slot), table.held_ends.get(slot)
        if bias is not None:
            found.append(LogitBias(row, *bias))
        if ends is not None and length < ends[0]:
            found.append(LogitBias(row, ends[1], np.full(len(ends[1]), -np.inf, np.float32)))
    return tuple(found)
