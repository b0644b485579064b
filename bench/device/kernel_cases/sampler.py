"""The sampler against the one for CPUs, and its time at 200 rows of a vocabulary of 128,256."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from engine.arrays import Ints
from engine.inputs import LogitBias, SamplingInputs, TokenHistory
from engine.sampler import find_sampler, sample
from engine.sampling import device as device_sampler
from engine.sampling import history
from engine.sampling.packed import NUM_COLUMNS, pack
from engine.sampling.random_numbers import uniform
from engine.sampling_columns import zero_columns

ROWS, VOCAB = 200, 128_256
PARAMETERS: dict[str, tuple[float, ...]] = {
    "temperature": (0.0, 0.6, 1.5),
    "top_k": (0, 50, 1000),
    "top_p": (1.0, 0.9),
    "min_p": (0.0, 0.02),
}
TIMED: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.6},
    "top_p": {"temperature": 0.6, "top_p": 0.9},
    "top_k, top_p": {"temperature": 0.6, "top_k": 50, "top_p": 0.9},
}
# Relative to the sum of all weights. Rounding can decide when a random number is this close to the end of a token's
# interval, or when a sum of probabilities is this close to top_p.
MARGIN = 1e-5
HISTORY = 4000


def check(device: torch.device) -> dict[str, float]:
    """Return the number of rows whose token differs from the CPU sampler's, apart from those that rounding can decide.
    The share of the latter is returned too."""
    is_cuda = device.type == "cuda"
    vocab = 32_064 if is_cuda else 3_000
    rows = [dict(zip(PARAMETERS, each, strict=True)) for each in itertools.product(*PARAMETERS.values())]
    inputs = _inputs(rows * 4 if is_cuda else rows[::5])
    found, num_close = {}, 0
    for name, logits in _distributions(inputs.num_rows, vocab, torch.device("cpu")).items():
        for dtype in (torch.float32, torch.bfloat16):
            values = logits.to(dtype)
            expected = sample(values.float(), inputs).token_ids
            tokens = _draw(values.to(device), inputs)[0].cpu().numpy()
            differing = np.flatnonzero(tokens != expected)
            close = [
                row for row in differing if _is_close(values[row].float(), inputs, row, (tokens[row], expected[row]))
            ]
            num_close += len(close)
            kind = f"{name}, {str(dtype).removeprefix('torch.')}"
            found[f"{kind}: rows that differ"] = float(len(differing) - len(close))
            alone = _draw(values[-1:].to(device), _select(inputs, slice(-1, None)))[0]
            found[f"{kind}: row alone differs"] = float(int(alone[0]) != tokens[-1])
    found["share of the draws that rounding decides"] = 2 * num_close / (len(found) * inputs.num_rows)
    return found | _check_adjustments(device, vocab) | _check_bad_rows(device, vocab)


def cases(device: torch.device) -> Iterator[tuple[str, Callable[[], object], int, int]]:
    is_cuda = device.type == "cuda"
    rows, vocab = (ROWS, VOCAB) if is_cuda else (2, 3_000)
    for name, logits in _distributions(rows, vocab, device).items():
        for dtype, (kind, parameters) in itertools.product((torch.float32, torch.bfloat16), TIMED.items()):
            values, type_name = logits.to(dtype), "" if dtype == torch.float32 else ", bfloat16"
            yield f"sampler, {kind}, {name}{type_name}", _launch(values, _inputs([parameters] * rows)), values.nbytes, 0
    inputs = _with_adjustments(_inputs([TIMED["top_p"]] * rows), vocab)
    uploaded = history.upload(inputs, device)
    adjust = partial(_adjuster(device), logits, *uploaded)
    num_histories = len(inputs.histories)
    name = f"sampler, penalties of {num_histories} rows, {HISTORY} tokens each"
    yield name, adjust, num_histories * HISTORY * 40, 0


def _distributions(rows: int, vocab: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return logits of an untrained model, and of a model that is sure of few tokens."""
    generator = torch.Generator(device).manual_seed(1)
    noise = partial(torch.randn, rows, vocab, generator=generator, device=device)
    peaked = noise() * 2
    peaked[:, : vocab // 100] += 6 * torch.rand(rows, vocab // 100, generator=generator, device=device) ** 4
    peaked[:, 7] += 12
    return {"flat": noise() * 0.8, "peaked": peaked}


def _draw(logits: torch.Tensor, inputs: SamplingInputs) -> torch.Tensor:
    return _launch(logits, inputs)()


def _launch(logits: torch.Tensor, inputs: SamplingInputs) -> Callable[[], torch.Tensor]:
    """Return the launch of the draw, as a step on a device does it."""
    columns = np.zeros((NUM_COLUMNS, inputs.num_rows), np.float32)
    pack(inputs, columns)
    slots = torch.arange(inputs.num_rows, dtype=torch.int32, device=logits.device)
    filters = {"has_top_k": bool(inputs.top_k.any()), "has_top_p": bool((inputs.top_p < 1).any())}
    return partial(
        _sampler(logits.device), logits, torch.from_numpy(columns).to(logits.device), slots, slots.clone(), **filters
    )


def _sampler(device: torch.device) -> Callable[..., torch.Tensor]:
    if os.environ.get("TRITON_INTERPRET") == "1":
        from engine.kernels.triton_sampler import sample_columns

        return sample_columns
    return find_sampler(device)


def _adjuster(device: torch.device) -> history.Adjust:
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        from engine.kernels.triton_penalties import adjust

        return adjust
    return history.adjust


def _inputs(rows: list[dict[str, float]]) -> SamplingInputs:
    columns = zero_columns(len(rows))
    columns |= {"seeds": np.arange(len(rows), dtype=np.uint64), "num_logprobs": np.full(len(rows), -1, np.int32)}
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        default = 0.0 if name in ("temperature", "top_k", "min_p") else 1.0
        columns[name] = np.array([row.get(name, default) for row in rows], columns[name].dtype)
    return SamplingInputs(**columns, positions=np.arange(len(rows), dtype=np.int64), histories=())


def _select(inputs: SamplingInputs, rows: slice) -> SamplingInputs:
    every: Ints = np.arange(inputs.num_rows, dtype=np.int32)[rows]
    return SamplingInputs(**inputs.select(every), positions=inputs.positions[rows], histories=())


def _is_close(logits: torch.Tensor, inputs: SamplingInputs, row: Any, tokens: tuple[Any, Any]) -> bool:
    """Return True if rounding may decide between two tokens: exact sums come within `MARGIN` of a decision."""
    temperature = float(inputs.temperature[row])
    if not temperature:
        return False
    weights = ((logits.double() - logits.max()) / temperature).exp().numpy()
    thresholds = [float(inputs.min_p[row])] if inputs.min_p[row] > 0 else []
    if 0 < inputs.top_k[row] < len(weights):
        least = np.sort(weights)[-int(inputs.top_k[row])]
        weights[weights < least] = 0
    if inputs.top_p[row] < 1:
        descending = np.sort(weights)[::-1]
        until, wanted = descending.cumsum() / weights.sum(), float(inputs.top_p[row])
        index = int((until < wanted).sum())
        if np.abs(until[max(index - 1, 0) : index + 1] - wanted).min() < MARGIN:
            return True
        weights[weights < descending[min(index, len(weights) - 1)]] = 0
    if any(np.abs(weights / each - 1).min() < MARGIN for each in thresholds):
        return True
    weights[weights < inputs.min_p[row]] = 0
    until = weights.cumsum() / weights.sum()
    number = float(uniform(inputs.seeds[row : row + 1], inputs.positions[row : row + 1])[0])
    low, high = sorted(int(token) for token in tokens)
    return bool(until[low] > number - MARGIN and until[high - 1] < number + MARGIN)


def _with_adjustments(inputs: SamplingInputs, vocab: int) -> SamplingInputs:
    rng, rows = np.random.default_rng(3), range(0, inputs.num_rows, 2)
    length = HISTORY if vocab == VOCAB else 300
    columns = {name: column for name, column in vars(inputs).items() if name != "is_filtered"}
    for name, value in (("repetition_penalty", 1.2), ("presence_penalty", 0.4), ("frequency_penalty", 0.1)):
        columns[name] = np.full(inputs.num_rows, value, np.float32)
    histories = tuple(TokenHistory(row, rng.integers(0, vocab // 20, length).astype(np.int32), 100) for row in rows)
    biases = tuple(
        LogitBias(row, np.array([5, 9, vocab - 1], np.int32), np.array([1.5, -100, 3], np.float32)) for row in (0, 1, 1)
    )
    return SamplingInputs(**columns | {"histories": histories, "biases": biases})


def _check_adjustments(device: torch.device, vocab: int) -> dict[str, float]:
    """Return the error of penalties and biases, applied twice, so that the table of counts must be empty after once."""
    inputs = _with_adjustments(_inputs([{}] * 6), vocab)
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(2)) * 3
    expected, found = logits.clone(), logits.to(device)
    uploaded = history.upload(inputs, device)
    _adjuster(device)(found.clone(), *uploaded)
    _adjuster(device)(found, *uploaded)
    sample(expected, inputs)
    return {"penalties and biases": float((found.cpu() - expected).abs().max() / expected.abs().max())}


def _check_bad_rows(device: torch.device, vocab: int) -> dict[str, float]:
    """Return 0 if exactly the rows that are not finite are marked, with token 0, and log-probabilities are right."""
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(4))
    for row, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        logits[row, vocab - 1 - row] = value
    inputs = _inputs([TIMED["top_k, top_p"]] * 6)
    tokens, flags = _draw(logits.to(device), inputs).cpu().tolist()
    is_right = flags == [1, 1, 1, 0, 0, 0] and tokens[:3] == [0, 0, 0]
    wanted = replace(_select(inputs, slice(3, None)), num_logprobs=np.array([20, 0, -1], np.int32))
    expected = sample(logits[3:].clone(), wanted)
    found = device_sampler.sample_rows(logits[3:].to(device), wanted, _sampler(device), _adjuster(device))
    assert expected.logprobs is not None
    assert expected.top_ids is not None
    same = np.allclose(found.logprobs, expected.logprobs, atol=1e-4, equal_nan=True)  # type: ignore[arg-type]
    is_right &= same and np.array_equal(found.top_ids, expected.top_ids)  # type: ignore[arg-type]
    return {"bad rows and log-probabilities": float(not is_right)}
