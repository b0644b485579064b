"""Logits -> token ids: greedy, or drawn from what temperature and filters leave, the same for a row in any batch.

A row's random number comes from its seed and the index of the token being drawn; nothing is shared between rows. The
likeliest candidates are taken first and the draw happens among them, so that the vocabulary is neither sorted nor
filled with noise; only when the draw may fall outside them is the whole row looked at. Knows no sequences and no text.

Letters: K rows, V vocabulary, M candidates. Order of the filters: penalties, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.inputs import Floats, Ints, SamplingInputs, StepOutput, TokenHistory

_NUM_CANDIDATES = 64
_MANY_CANDIDATES = 1024  # for rows whose top_k asks for more than the usual few
_LEAST_REPETITION = np.float32(1e-3)  # it divides
_LEAST_TEMPERATURE = 1e-5  # below, the division overflows and the draw is the greedy one anyway

Reals = NDArray[np.float64]
Rows = NDArray[np.intp]


def sample(logits: torch.Tensor, inputs: SamplingInputs) -> StepOutput:
    """float32 logits [K, V] -> one token a row. Rows that have penalties are changed in place."""
    is_failed = ~np.isfinite(logits.sum(-1).numpy())  # [K]; a sum is finite only if every term is
    asked = np.flatnonzero(inputs.num_logprobs >= 0)
    raw = torch.log_softmax(logits[asked], -1) if len(asked) else None  # [rows asked, V]
    for history in inputs.histories:
        _penalise(logits[history.row].numpy(), history, inputs)
    token_ids = logits.numpy().argmax(1).astype(np.int32)  # [K]
    drawn = np.flatnonzero((inputs.temperature >= _LEAST_TEMPERATURE) & ~is_failed)
    if len(drawn):
        token_ids[drawn] = _draw(logits, _Filters.of(inputs, drawn), drawn)
    failed = is_failed if is_failed.any() else None
    if raw is None:
        return StepOutput(token_ids, failed)
    return StepOutput(token_ids, failed, *_logprobs(raw, token_ids, asked, inputs.num_logprobs))


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> Reals:
    """One number in [0, 1) for each (seed, position): SplitMix64 of the mixed seed, stepped to the position."""
    step = np.uint64(0x9E3779B97F4A7C15)
    state = _mix(_mix(seeds.astype(np.uint64) + step) + (positions.astype(np.uint64) + np.uint64(1)) * step)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _penalise(logits: Floats, history: TokenHistory, inputs: SamplingInputs) -> None:
    """Change one row [V] for what the sequence has seen."""
    repetition = max(inputs.repetition_penalty[history.row], _LEAST_REPETITION)
    if repetition != 1:
        seen = logits[history.token_ids]  # repeats give the same value again
        logits[history.token_ids] = np.where(seen > 0, seen / repetition, seen * repetition)
    presence, frequency = inputs.presence_penalty[history.row], inputs.frequency_penalty[history.row]
    completion = history.token_ids[history.num_prompt :]
    if (presence or frequency) and len(completion):
        counts = np.bincount(completion)  # up to the highest id seen
        logits[: len(counts)] -= (frequency * counts + presence * (counts > 0)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Filters:
    """The parameters of the rows that draw, and their random numbers; all [K]."""

    temperature: Floats
    top_k: Ints
    top_p: Reals
    min_p: Reals
    uniforms: Reals

    @classmethod
    def of(cls, inputs: SamplingInputs, rows: Rows) -> _Filters:
        return cls(
            temperature=inputs.temperature[rows],
            top_k=inputs.top_k[rows],
            top_p=inputs.top_p[rows].astype(np.float64),
            min_p=inputs.min_p[rows].astype(np.float64),
            uniforms=uniform(inputs.seeds[rows], inputs.positions[rows]),
        )

    @property
    def is_free(self) -> NDArray[np.bool_]:
        """Rows that nothing filters: the whole distribution may be drawn."""
        return (self.top_k == 0) & (self.top_p >= 1) & (self.min_p <= 0)

    def only(self, rows: Rows) -> _Filters:
        return _Filters(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.uniforms[rows]
        )


def _draw(logits: torch.Tensor, filters: _Filters, rows: Rows) -> Ints:
    """One token id for each of `rows` of logits [·, V]. A row's path depends on its own parameters alone."""
    token_ids = np.empty(len(rows), np.int32)
    most = np.where(filters.top_k <= _NUM_CANDIDATES, _NUM_CANDIDATES, _MANY_CANDIDATES)
    for num_candidates in np.unique(most):
        chosen = np.flatnonzero(most == num_candidates)
        selected = logits if len(chosen) == len(logits) else logits[rows[chosen]]  # [K, V]
        scaled = selected / torch.from_numpy(filters.temperature[chosen]).unsqueeze(1)
        token_ids[chosen] = _draw_alike(scaled, filters.only(chosen), min(int(num_candidates), logits.shape[1]))
    return token_ids


def _draw_alike(scaled: torch.Tensor, filters: _Filters, num_candidates: int) -> Ints:
    """Draw from rows [K, V] that take the same number of candidates."""
    top, top_ids = scaled.topk(num_candidates)  # [K, M], likeliest first
    weights = torch.exp(scaled - top[:, :1])  # [K, V], the likeliest has 1
    total = weights.sum(-1).numpy().astype(np.float64)  # [K]
    candidates = np.exp((top - top[:, :1]).numpy().astype(np.float64))  # [K, M]
    kept, is_settled = _filter_candidates(candidates, total, filters, scaled.shape[1])
    cumulative = kept.cumsum(1)  # [K, M]
    is_free = filters.is_free
    target = filters.uniforms * np.where(is_free, total, cumulative[:, -1])  # [K]
    index = (cumulative <= target[:, None]).sum(1)  # [K], first candidate beyond the target
    is_inside = np.where(is_free, index < num_candidates, is_settled)
    token_ids = top_ids.numpy()[np.arange(len(index)), np.minimum(index, num_candidates - 1)].astype(np.int32)
    outside = np.flatnonzero(~is_inside)
    if len(outside):
        for row in outside[is_free[outside]]:  # what it drew lies beyond the candidates: draw among all the others
            weights[row, top_ids[row]] = 0
        rest = (target - cumulative[:, -1]) / np.maximum(total - cumulative[:, -1], 1e-30)
        uniforms = np.where(is_free, rest, filters.uniforms)[outside]
        found = _draw_anywhere(weights[outside], filters.only(outside), uniforms)
        token_ids[outside] = np.where(found >= 0, found, token_ids[outside])
    return token_ids


def _filter_candidates(
    candidates: Reals, total: Reals, filters: _Filters, vocab_size: int
) -> tuple[Reals, NDArray[np.bool_]]:
    """candidates [K, M] with what the filters remove set to 0, and for each row whether nothing beyond M may stay."""
    num_candidates = candidates.shape[1]
    top_k, top_p, min_p = np.minimum(filters.top_k, vocab_size), filters.top_p, filters.min_p
    is_limited = ((top_k > 0) & (top_k <= num_candidates)) | (num_candidates == vocab_size)
    is_removed = (top_k > 0)[:, None] & (np.arange(num_candidates) >= top_k[:, None])
    kept = np.where(is_removed, 0.0, candidates)  # [K, M]
    mass = np.where(is_limited, kept.sum(1), total)  # [K], what top_p is a part of
    cumulative = kept.cumsum(1)
    is_covered = ((top_p < 1) & (cumulative[:, -1] >= top_p * mass)) | (candidates[:, -1] < min_p)
    is_settled = is_limited | (is_covered & (top_k == 0))
    is_kept = (cumulative - kept < (top_p * mass)[:, None]) & (kept >= min_p[:, None])
    return np.where(is_kept, kept, 0.0), is_settled


def _draw_anywhere(weights: torch.Tensor, filters: _Filters, uniforms: Reals) -> Ints:
    """One token id for each row of weights [K, V] (changed in place), in the order of ids; -1 where all are 0."""
    for row in np.flatnonzero(filters.top_k > 0):
        least = weights[row].topk(min(int(filters.top_k[row]), weights.shape[1])).values[-1]
        weights[row].mul_(weights[row] >= least)
    thresholds = filters.min_p.copy()
    for row in np.flatnonzero(filters.top_p < 1):
        thresholds[row] = max(thresholds[row], _nucleus_threshold(weights[row].numpy(), float(filters.top_p[row])))
    weights.mul_(weights >= torch.from_numpy(thresholds.astype(np.float32)).unsqueeze(1))
    cumulative = weights.cumsum(-1)  # [K, V]
    total = cumulative[:, -1:].clone()  # [K, 1]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(torch.from_numpy(uniforms.astype(np.float32)).unsqueeze(1) * total, below_total)
    found = torch.searchsorted(cumulative, target, right=True)  # [K, 1]
    return torch.where(total > 0, found, -1).squeeze(1).numpy().astype(np.int32)


def _nucleus_threshold(weights: Floats, top_p: float) -> float:
    """The largest weight such that all of weights [V] from it upwards still make `top_p` of the whole.

    Splits at the mean and keeps the side where the threshold lies, so that all passes together read a few times V.
    """
    wanted = top_p * float(weights.sum(dtype=np.float64))
    above, rest = 0.0, weights
    while len(rest) > _NUM_CANDIDATES:
        is_upper = rest > rest.mean()
        upper = float(rest[is_upper].sum(dtype=np.float64))
        if not is_upper.any():  # all equal
            break
        if above + upper >= wanted:
            rest = rest[is_upper]
        else:
            above, rest = above + upper, rest[~is_upper]
    descending = np.sort(rest)[::-1]
    index = np.searchsorted(above + descending.cumsum(dtype=np.float64), wanted)
    return float(descending[min(int(index), len(descending) - 1)])


def _logprobs(raw: torch.Tensor, token_ids: Ints, asked: Rows, num_logprobs: Ints) -> tuple[Floats, Ints, Floats]:
    """From raw [rows asked, V]: logprob of each token [K], ids and logprobs of the likeliest [K, most asked]."""
    num_rows, most = len(token_ids), min(int(num_logprobs.max()), raw.shape[1])
    logprobs = np.full(num_rows, np.nan, np.float32)
    logprobs[asked] = raw.numpy()[np.arange(len(asked)), token_ids[asked]]
    top_ids = np.full((num_rows, most), -1, np.int32)
    top_logprobs = np.full((num_rows, most), np.nan, np.float32)
    if most:
        values, ids = raw.topk(most)  # [rows asked, most]
        is_wanted = np.arange(most) < num_logprobs[asked][:, None]
        top_ids[asked] = np.where(is_wanted, ids.numpy(), -1)
        top_logprobs[asked] = np.where(is_wanted, values.numpy(), np.nan)
    return logprobs, top_ids, top_logprobs
