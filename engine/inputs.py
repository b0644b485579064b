"""Inputs and outputs of one step, as arrays: the interface between scheduling and the runner.

Letters: R rows (sequences in the step), T tokens, K rows that sample, P prompt tokens whose log-probabilities are
wanted, L = K + P rows of logits, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import Floats, Ints, Longs
from engine.sampling_columns import SamplingColumns, zero_columns


@dataclass(frozen=True, eq=False)
class TokenHistory:
    """The tokens of one row with penalties: prompt and completion so far."""

    row: int  # index among the K sampling rows
    token_ids: Ints
    num_prompt: int


@dataclass(frozen=True, eq=False)
class LogitBias:
    """Values to add to some logits of one sampling row."""

    row: int  # index among the K sampling rows
    token_ids: Ints  # distinct
    values: Floats


class ConstrainedRows(Protocol):
    """The rows among the K sampling rows whose text is constrained by a grammar.

    A mask is [bytes]: one bit per token that is allowed, lowest bit first, at least V bits.
    """

    def initial_masks(self, is_filtered: NDArray[np.bool_]) -> tuple[list[int], NDArray[np.uint8]]:
        """Return the R rows that must sample under a mask at once, and their masks [R, bytes].

        `is_filtered` [K] marks rows whose top-k, top-p or min-p filter depends on the mask. All other rows sample from
        the whole vocabulary first.
        """

    def accept(self, token_ids: Ints, is_failed: NDArray[np.bool_]) -> list[int]:
        """Accept the sampled tokens [K].

        Overwrites tokens that a grammar forces and marks rows whose grammar failed, both in place. Returns the R rows
        whose token is rejected: they sample again under `rejected_masks`, followed by `accept_resampled`.
        """

    def rejected_masks(self) -> NDArray[np.uint8]:
        """Return the masks [R, bytes] of the rejected rows."""

    def accept_resampled(self, token_ids: Ints, is_failed: NDArray[np.bool_]) -> None:
        """Accept the tokens of the rejected rows after they sampled again."""


class ConstraintSource(Protocol):
    """Finds the constrained rows of a step."""

    def begin(self, sequence_ids: Longs, remaining: Ints) -> ConstrainedRows | None:
        """Return the constrained rows among K sampling rows with `remaining` [K] tokens left, if any."""


@dataclass(frozen=True, eq=False)
class SamplingInputs(SamplingColumns):
    """Sampling parameters of the K rows that sample, and what else their tokens depend on.

    A row's random number is derived from its seed and position, so that a row samples the same token in any batch.
    `histories` has entries only for rows with a penalty, `biases` only for rows with a bias (at most two each).
    """

    positions: Longs  # [K], index of the token to sample, counted from the start of the prompt
    histories: tuple[TokenHistory, ...]
    biases: tuple[LogitBias, ...] = ()
    constrained: ConstrainedRows | None = None  # None if no row has a constraint

    @property
    def num_rows(self) -> int:
        return len(self.temperature)

    @property
    def needs_host(self) -> bool:
        """True if a row's token depends on values on the host, or more than its token is wanted."""
        if self.histories or self.biases or self.constrained is not None:
            return True
        return bool(self.num_logprobs.max(initial=-1) >= 0)


@dataclass(frozen=True, eq=False)
class PromptLogprobRows:
    """P prompt tokens whose log-probabilities are wanted. Indices are among the L rows of logits, in token order."""

    sampled: Longs  # [K], indices of the sampling rows
    rows: Longs  # [P], indices of the tokens before the wanted ones
    token_ids: Ints  # [P]
    num_tops: int  # number of top tokens for each
    sequences: tuple[tuple[int, int, int], ...]  # slot, sequence id, and how many of the P tokens, in order


@dataclass(frozen=True, eq=False)
class TokenLogprobs:
    """Log-probabilities of P tokens, and the top tokens at each of their positions."""

    logprobs: Floats  # [P]
    top_ids: Ints  # [P, num_tops]
    top_logprobs: Floats  # [P, num_tops]


@dataclass(frozen=True, eq=False)
class ImageRows:
    """Tokens of a step that belong to images, and the vectors that replace their embeddings."""

    rows: Longs  # [N], indices among the T tokens
    embeddings: Floats  # [N, C]
    mutual: Ints | None = None  # [M, 2], first token, and token after the last, of images whose tokens see each other


@dataclass(frozen=True, eq=False)
class StepInputs:
    """Inputs of one forward pass. The first `num_decode_rows` rows have one token each.

    `sequence_ids` are unique in the life of an engine.
    """

    token_ids: torch.Tensor  # int64 [T]; UNKNOWN_TOKEN for the token that the previous step samples in the row's slot
    positions: torch.Tensor  # int64 [T]
    slot_mapping: torch.Tensor  # int64 [T], block id × block size + offset of each token's KV
    logit_rows: torch.Tensor  # int64 [L], indices of tokens whose logits are needed, ascending
    query_starts: Ints  # [R + 1], offset of each row's first token; int32 because kernels index with it
    context_lens: Ints  # [R], tokens with KV after this step
    block_tables: Ints  # [R, max blocks]; entries beyond ceil(context_len / block size) are undefined
    sequence_ids: Longs  # [R]
    num_decode_rows: int
    sampling: SamplingInputs
    adapters: Ints | None = None  # [R], adapter handles, 0 for none; None if no row has an adapter
    prompt_logprobs: PromptLogprobRows | None = None
    images: ImageRows | None = None
    axis_positions: torch.Tensor | None = None  # int64 [3, T], see `image_positions.py`; None: `positions` on each axis
    slots: Ints | None = None  # [R], the slot of each row; None for rows without a slot table
    # Entries of the block tables that have changed since the last step: indices [U] among all entries of all slots, and
    # their blocks [U]. Only for runners that keep the tables on the device, whose `block_tables` are then empty.
    block_updates: tuple[Longs, Ints] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.context_lens)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def needs_every_logit(self) -> bool:
        """True if the logits of all tokens are needed: `logit_rows` are then all indices in order."""
        return self.logit_rows.shape == self.token_ids.shape


@dataclass(frozen=True, eq=False)
class StepOutput:
    """Tokens sampled by the K rows that sample.

    `is_failed` marks rows whose logits were not finite or whose constraint failed: their token is undefined and their
    sequence ends with an error. Log-probabilities are those of the model before temperature, penalties and constraints.
    """

    token_ids: Ints  # [K]
    is_failed: NDArray[np.bool_] | None = None  # [K]; None if no row failed
    logprobs: Floats | None = None  # [K]; None if no row wants log-probabilities
    top_ids: Ints | None = None  # [K, most wanted]; -1 beyond the number that a row wants
    top_logprobs: Floats | None = None  # [K, most wanted]
    prompt_logprobs: TokenLogprobs | None = None
    device_us: float | None = None  # time that the device was busy with the step; None if only the host knows

    def select(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> StepOutput:
        """Return a copy with the rows that are marked or listed."""
        columns = (self.is_failed, self.logprobs, self.top_ids, self.top_logprobs)
        selected: list[Any] = [None if column is None else column[rows] for column in columns]
        return StepOutput(self.token_ids[rows], *selected)


NO_SAMPLING = SamplingInputs(**zero_columns(0), positions=np.empty(0, np.int64), histories=())  # K = 0


def warmup_step(num_tokens: int) -> StepInputs:
    """Return a step of one row from position 0 whose KV goes to block 0. No row samples."""
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
