"""Sampling under constraints: apply masks to logits, and sample again where a constraint rejected the first token.

Sampling without a mask first and again under a mask if the token is rejected gives each allowed token the same
probability as sampling under the mask at once. Most tokens are accepted, so most masks are never computed.

Letters: K rows, V vocabulary, R rows that sample again.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import Floats, Ints
from engine.inputs import ConstrainedRows, SamplingInputs
from engine.kernels.native.library import find_library
from engine.sampling.draw import draw
from engine.sampling.random_numbers import SECOND_DRAW, uniform

MIN_TEMPERATURE = 1e-5  # below, sampling is greedy: the division would overflow

_MAX_ALLOWED = 8192  # allowed tokens up to which a row is sampled without operators over the vocabulary

# [256, 8]: for each byte of a mask, the values added to the logits of its eight tokens. Adding is ten times as fast as
# filling by a boolean mask.
_MASK_VALUES = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf)
_MASK_VALUES = _MASK_VALUES.astype(np.float32)


def apply_masks(logits: torch.Tensor, inputs: SamplingInputs, constrained: ConstrainedRows) -> None:
    """Mask logits [K, V] in place where that must precede sampling."""
    _mask(logits, *constrained.initial_masks(_is_filtered(inputs)))


def sample_again(logits: torch.Tensor, inputs: SamplingInputs, rows: list[int], bits: NDArray[np.uint8]) -> Ints:
    """Sample `rows` under their masks `bits` [R, bytes], with another random number than the first time."""
    token_ids = _draw_allowed_natively(logits, inputs, rows, bits)
    if token_ids is None:
        token_ids = _draw_allowed(logits.numpy(), inputs, rows, bits)
    is_filtered = _is_filtered(inputs)[rows] if np.count_nonzero(inputs.is_filtered) else None
    if is_filtered is None and min(token_ids.tolist()) >= 0:
        return token_ids
    unsampled = np.flatnonzero(token_ids < 0 if is_filtered is None else (token_ids < 0) | is_filtered)
    rows_left = np.array(rows)[unsampled]
    if len(unsampled):
        _mask(logits, rows_left.tolist(), bits[unsampled])
        token_ids[unsampled] = logits.numpy()[rows_left].argmax(1)
    random = np.flatnonzero(inputs.temperature[rows_left] >= MIN_TEMPERATURE)
    if len(random):
        token_ids[unsampled[random]] = draw(logits, inputs, rows_left[random], inputs.seeds ^ SECOND_DRAW)
    return token_ids


def _is_filtered(inputs: SamplingInputs) -> NDArray[np.bool_]:
    """[K], True for rows whose filters must see the masked logits; these cannot sample before the mask is known."""
    if not np.count_nonzero(inputs.is_filtered):
        return inputs.is_filtered
    return inputs.is_filtered & (inputs.temperature >= MIN_TEMPERATURE)


def _mask(logits: torch.Tensor, rows: list[int], bits: NDArray[np.uint8]) -> None:
    """Apply the masks `bits` [rows, bytes] to `rows` of logits [K, V]."""
    if rows:
        values = _MASK_VALUES.take(bits, axis=0).reshape(len(bits), -1)[:, : logits.shape[1]]  # [rows, V]
        every = logits.numpy()
        if len(rows) == len(every):
            np.add(every, values, out=every)
        else:
            every[rows] += values


def _draw_allowed(logits: Floats, inputs: SamplingInputs, rows: list[int], bits: NDArray[np.uint8]) -> Ints:
    """Sample rows that have few allowed tokens, without filters; -1 for the other rows."""
    is_allowed = np.unpackbits(bits, axis=1, count=logits.shape[1], bitorder="little").view(np.bool_)  # [rows, V]
    token_ids = np.full(len(rows), -1, np.int32)
    numbers = uniform(inputs.seeds[rows] ^ SECOND_DRAW, inputs.positions[rows]).tolist()
    for index, row in enumerate(rows):
        allowed = is_allowed[index].nonzero()[0]
        if 0 < len(allowed) <= _MAX_ALLOWED:
            chosen = _choose(logits[row, allowed], float(inputs.temperature[row]), numbers[index])
            token_ids[index] = allowed[chosen]
    return token_ids


def _draw_allowed_natively(
    logits: torch.Tensor, inputs: SamplingInputs, rows: list[int], bits: NDArray[np.uint8]
) -> Ints | None:
    """Draw like `_draw_allowed`, in one call of the compiled library. Return None if there is no library."""
    library = find_library()
    if library is None or logits.stride(1) != 1 or bits.strides[1] != 1:
        return None
    token_ids = np.empty(len(rows), np.int32)
    columns = (bits, np.array(rows), inputs.temperature, inputs.seeds, inputs.positions, token_ids)
    library.hearth_draw_allowed(
        logits.data_ptr(),
        *(column.__array_interface__["data"][0] for column in columns),
        len(rows),
        bits.strides[0],
        logits.shape[1],
        logits.stride(0),
        int(SECOND_DRAW),
        MIN_TEMPERATURE,
    )
    return token_ids


def _choose(logits: Floats, temperature: float, number: float) -> int:
    """Return the index among a few logits [M] that a random number in [0, 1) selects."""
    best = int(logits.argmax())
    if temperature < MIN_TEMPERATURE or not np.isfinite(logits[best]):
        return best
    until = np.exp((logits - logits[best]) / np.float32(temperature)).cumsum(dtype=np.float64)
    return min(int(until.searchsorted(number * until[-1], side="right")), len(logits) - 1)
