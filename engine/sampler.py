"""Sampler: logits to token ids, greedy or random. A row's result does not depend on the other rows of the batch.

Order of operations: constraint masks, logit bias, penalties, temperature, top-k, top-p, min-p. Log-probabilities are
those of the model's own distribution, before all of these. Knows no sequences and no text.

Letters: K rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.arrays import Floats
from engine.inputs import SamplingInputs, StepOutput, TokenHistory
from engine.sampling import plain_draw
from engine.sampling.constraints import MIN_TEMPERATURE, apply_masks, sample_again
from engine.sampling.device import Sampler, sample_rows
from engine.sampling.draw import draw
from engine.sampling.logprobs import select_logprobs

_MIN_REPETITION = np.float32(1e-3)  # logits are divided by the penalty


def sample(logits: torch.Tensor, inputs: SamplingInputs) -> StepOutput:
    """Sample one token for each row of float32 logits [K, V]. May change the logits in place."""
    is_failed = ~np.isfinite(logits.sum(-1).numpy())  # [K]; a sum is finite only if every term is
    with_logprobs = np.flatnonzero(inputs.num_logprobs >= 0)
    logprobs = torch.log_softmax(logits[with_logprobs], -1) if len(with_logprobs) else None  # [with_logprobs, V]
    if inputs.constrained is not None:
        apply_masks(logits, inputs, inputs.constrained)
    for bias in inputs.biases:
        logits[bias.row].numpy()[bias.token_ids] += bias.values
    for history in inputs.histories:
        _penalize(logits[history.row].numpy(), history, inputs)
    token_ids = logits.numpy().argmax(1).astype(np.int32)  # [K]
    random = np.flatnonzero((inputs.temperature >= MIN_TEMPERATURE) & ~is_failed)
    if len(random):
        token_ids[random] = draw(logits, inputs, random, inputs.seeds)
    if inputs.constrained is not None:
        rejected = inputs.constrained.accept(token_ids, is_failed)
        if rejected:
            token_ids[rejected] = sample_again(logits, inputs, rejected, inputs.constrained.rejected_masks())
            inputs.constrained.accept_resampled(token_ids, is_failed)
    failed = is_failed if is_failed.any() else None
    if logprobs is None:
        return StepOutput(token_ids, failed)
    return StepOutput(token_ids, failed, *select_logprobs(logprobs, token_ids, with_logprobs, inputs.num_logprobs))


def sample_on_device(logits: torch.Tensor, inputs: SamplingInputs) -> StepOutput:
    """Sample like `sample`, for logits on a GPU; only a few numbers per row are copied to the host. Without a GPU,
    which Triton needs, logits are copied."""
    if logits.device.type != "cuda":
        return sample(logits.cpu(), inputs)
    from engine.kernels.triton_penalties import adjust  # imported late, because Triton is optional

    return sample_rows(logits, inputs, find_sampler(logits.device), adjust)


def find_sampler(device: torch.device) -> Sampler:
    """Return the draw for logits on a device: see `engine.kernels.triton_sampler.sample_columns`."""
    if device.type != "cuda":
        return plain_draw.sample_columns
    from engine.kernels.triton_sampler import sample_columns  # imported late, because Triton is optional

    return sample_columns


def _penalize(logits: Floats, history: TokenHistory, inputs: SamplingInputs) -> None:
    """Apply repetition, presence and frequency penalties to one row of logits [V], in place."""
    repetition = max(inputs.repetition_penalty[history.row], _MIN_REPETITION)
    if repetition != 1:
        seen = logits[history.token_ids]  # repeated ids write the same value again
        logits[history.token_ids] = np.where(seen > 0, seen / repetition, seen * repetition)
    presence, frequency = inputs.presence_penalty[history.row], inputs.frequency_penalty[history.row]
    completion = history.token_ids[history.num_prompt :]
    if (presence or frequency) and len(completion):
        counts = np.bincount(completion)  # [highest id seen + 1]
        logits[: len(counts)] -= (frequency * counts + presence * (counts > 0)).astype(np.float32)
