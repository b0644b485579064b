"""The sampler for logits on a GPU. Logits stay there; of each row, the host receives a token id and a flag, and
log-probabilities if they are wanted.

The draw is `engine/kernels/triton_sampler.py`, or `plain_draw.py` without Triton. Biases and penalties are
`engine/kernels/triton_penalties.py`, or `history.py`. Log-probabilities concern few rows and use torch's operators.
Grammars run on the host: rows whose token a grammar rejects are drawn again under its mask.

Letters: K rows, V vocabulary, R rows with a mask.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import Ints, Longs
from engine.inputs import SamplingInputs, StepOutput
from engine.kernels.upload import Upload
from engine.sampling.constraints import MIN_TEMPERATURE
from engine.sampling.history import Adjust, upload
from engine.sampling.packed import NUM_COLUMNS, pack


class Sampler(Protocol):
    """See `engine.kernels.triton_sampler.sample_columns`."""

    def __call__(
        self,
        logits: torch.Tensor,
        columns: torch.Tensor,
        row_slots: torch.Tensor,
        last_tokens: torch.Tensor | None = None,
        *,
        has_top_k: bool = False,
        has_top_p: bool = False,
        masks: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


def sample_rows(logits: torch.Tensor, inputs: SamplingInputs, sampler: Sampler, adjust: Adjust) -> StepOutput:
    """Sample one token for each row of float32 logits [K, V], which are changed in place."""
    if inputs.num_rows == 0:
        return StepOutput(np.empty(0, np.int32))
    with_logprobs = np.flatnonzero(inputs.num_logprobs >= 0)
    logprobs = torch.log_softmax(logits[_on(logits, with_logprobs)], -1) if len(with_logprobs) else None
    if inputs.biases or inputs.histories:
        adjust(logits, *upload(inputs, logits.device))
    constrained, rows = inputs.constrained, np.arange(inputs.num_rows)
    masks = None
    if constrained is not None:
        is_random = inputs.temperature >= MIN_TEMPERATURE
        masked, bits = constrained.initial_masks(inputs.is_filtered & is_random)
        masks = _all_masks(bits, masked, inputs.num_rows) if masked else None
    found = _launch(logits, inputs, rows, masks, sampler)
    token_ids, is_failed = found[0], found[1] > 0
    if constrained is not None:
        rejected = constrained.accept(token_ids, is_failed)
        if rejected:
            again = np.array(rejected)
            bits = constrained.rejected_masks()
            token_ids[again] = _launch(logits, inputs, again, bits, sampler, is_second=True)[0]
            constrained.accept_resampled(token_ids, is_failed)
    failed = is_failed if is_failed.any() else None
    if logprobs is None:
        return StepOutput(token_ids, failed)
    return StepOutput(token_ids, failed, *_logprobs_of(logprobs, token_ids, with_logprobs, inputs.num_logprobs))


def _launch(
    logits: torch.Tensor,
    inputs: SamplingInputs,
    rows: NDArray[np.intp],
    masks: NDArray[np.uint8] | None,
    sampler: Sampler,
    *,
    is_second: bool = False,
) -> Ints:
    """Draw a token for each of `rows`. Return int32 [2, rows]: token ids, and flags of rows that are not finite."""
    every = np.zeros((NUM_COLUMNS, inputs.num_rows), np.float32)
    pack(inputs, every, is_second)
    move = Upload(logits.device).move
    (columns,) = move((every[:, rows],))
    bits = None if masks is None else move((masks,))[0]
    selected = logits if len(rows) == len(logits) else logits[_on(logits, rows)]
    row_slots = torch.zeros(len(rows), dtype=torch.int32, device=logits.device)
    has_top_k, has_top_p = bool(inputs.top_k.any()), bool((inputs.top_p < 1).any())
    result = sampler(selected, columns, row_slots, has_top_k=has_top_k, has_top_p=has_top_p, masks=bits)
    return result.cpu().numpy()


def _all_masks(bits: NDArray[np.uint8], masked: list[int], num_rows: int) -> NDArray[np.uint8]:
    """Return masks [K, bytes] that allow every token in rows without a mask."""
    every = np.full((num_rows, bits.shape[1]), 0xFF, np.uint8)
    every[masked] = bits
    return every


def _logprobs_of(
    logprobs: torch.Tensor, token_ids: Ints, rows: NDArray[np.intp], num_logprobs: Ints
) -> tuple[NDArray[np.float32], Ints, NDArray[np.float32]]:
    """See `engine.sampling.logprobs.select_logprobs`."""
    num_rows, most = len(token_ids), min(int(num_logprobs.max()), logprobs.shape[1])
    own = np.full(num_rows, np.nan, np.float32)
    own[rows] = logprobs.gather(1, _on(logprobs, token_ids[rows]).unsqueeze(1)).squeeze(1).cpu().numpy()
    top_ids = np.full((num_rows, most), -1, np.int32)
    top_logprobs = np.full((num_rows, most), np.nan, np.float32)
    if most:
        values, ids = (found.cpu().numpy() for found in logprobs.topk(most))
        is_wanted = np.arange(most) < num_logprobs[rows][:, None]
        top_ids[rows], top_logprobs[rows] = np.where(is_wanted, ids, -1), np.where(is_wanted, values, np.nan)
    return own, top_ids, top_logprobs


def _on(tensor: torch.Tensor, indices: Ints | Longs | NDArray[np.intp]) -> torch.Tensor:
    """Return int64 indices on the tensor's device."""
    return torch.from_numpy(indices.astype(np.int64)).to(tensor.device)
