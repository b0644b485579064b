"""The device sampler's draw in plain torch: the definition of `engine/kernels/triton_sampler.py`, and its replacement
without Triton.

Sorts rows. Waits for nothing, so that it can be captured in a graph.

Letters: K rows, V vocabulary.
"""

from __future__ import annotations

import torch

from engine.sampling.packed import MIN_P, POSITION, SEED_HIGH, SEED_LOW, TEMPERATURE, TOP_K, TOP_P

_STEP = 0x9E3779B97F4A7C15 - 2**64


def sample_columns(
    logits: torch.Tensor,
    columns: torch.Tensor,
    row_slots: torch.Tensor,
    last_tokens: torch.Tensor | None = None,
    *,
    has_top_k: bool = False,
    has_top_p: bool = False,
    masks: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `engine.kernels.triton_sampler.sample_columns`. Tokens of rows with slot -1 are undefined."""
    logits = logits.float()
    is_failed = ~torch.isfinite(logits.sum(-1))  # [K]
    logits = torch.nan_to_num(logits)
    if masks is not None:
        bits = (masks.unsqueeze(-1) >> torch.arange(8, device=masks.device, dtype=torch.uint8)) & 1  # [K, bytes, 8]
        logits = logits.masked_fill(bits.flatten(1)[:, : logits.shape[1]] == 0, float("-inf"))
    temperature = columns[TEMPERATURE].unsqueeze(1)  # [K, 1]
    top = logits.amax(-1, keepdim=True)
    weights = ((logits - top) / torch.where(temperature > 0, temperature, 1.0)).exp()  # [K, V], at most 1
    if has_top_k:
        weights = _keep_largest(weights, columns[TOP_K].view(torch.int32).unsqueeze(1))
    if has_top_p:
        weights = _keep_nucleus(weights, columns[TOP_P].unsqueeze(1))
    weights = torch.where(weights >= columns[MIN_P].unsqueeze(1), weights, 0.0)
    until = weights.cumsum(-1)
    uniforms = uniform(columns).unsqueeze(1)  # [K, 1]
    target = torch.minimum(uniforms * until[:, -1:], torch.nextafter(until[:, -1:], top * 0))
    drawn = (until <= target).sum(-1).clamp(max=logits.shape[1] - 1)
    token_ids = torch.where(columns[TEMPERATURE] > 0, drawn, logits.argmax(-1))
    token_ids = torch.where(is_failed, 0, token_ids).int()
    if last_tokens is not None:  # rows without a slot go to an entry behind the last, which is dropped
        remembered = torch.cat((last_tokens, last_tokens[:1]))
        slots = torch.where(row_slots < 0, len(last_tokens), row_slots).long()
        last_tokens.copy_(remembered.index_copy(0, slots, token_ids)[:-1])
    return torch.stack((token_ids, is_failed.int()))


def uniform(columns: torch.Tensor) -> torch.Tensor:
    """Return each row's random number in [0, 1), float32 [K]: see `engine.sampling.random_numbers`."""
    ints = columns.view(torch.int32).long()  # arithmetic of int64 wraps around
    seeds = (ints[SEED_LOW] & 0xFFFFFFFF) | (ints[SEED_HIGH] << 32)
    state = _mix(_mix(seeds + _STEP) + (ints[POSITION] + 1) * _STEP)
    return (_shift(state, 11).float() * 2.0**-53).clamp(max=1 - 2.0**-24)


def _mix(state: torch.Tensor) -> torch.Tensor:
    state = (state ^ _shift(state, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    state = (state ^ _shift(state, 27)) * (0x94D049BB133111EB - 2**64)
    return state ^ _shift(state, 31)


def _shift(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift int64 to the right without copies of the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _keep_largest(weights: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Set weights [K, V] below the top_k-th largest to 0; `top_k` int32 [K, 1], 0 keeps all."""
    last = torch.where(top_k > 0, top_k.clamp(max=weights.shape[1]), weights.shape[1]).long() - 1
    least = weights.sort(-1, descending=True).values.gather(1, last)
    return torch.where(weights >= least, weights, 0.0)


def _keep_nucleus(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Set weights [K, V] below that of the last token that `top_p` [K, 1] needs to 0."""
    descending = weights.sort(-1, descending=True).values
    until = descending.cumsum(-1)
    index = (until < top_p * until[:, -1:]).sum(-1, keepdim=True).clamp(max=weights.shape[1] - 1)
    least = torch.where(top_p < 1, descending.gather(1, index), 0.0)
    return torch.where(weights >= least, weights, 0.0)
