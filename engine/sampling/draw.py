"""Random sampling: draw a token from each row of logits by temperature, top-k, top-p and min-p.

Filters keep the tokens whose weight reaches a threshold, so equal weights are treated alike, and the draw is by weight
in the order of token ids. If a filter is set, the most likely candidates are found first, and the draw happens among
them if the filter cannot leave others. The vocabulary is never sorted. `engine/kernels/triton_sampler.py` does the same
on a GPU.

Letters: K rows, V vocabulary, M candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from engine.arrays import Floats, Ints
from engine.inputs import SamplingInputs
from engine.sampling.random_numbers import uniform

_NUM_CANDIDATES = 64
_MANY_CANDIDATES = 1024  # for rows whose top_k is larger than the above
_SPAN = 128  # consecutive ids that are summed together when sampling from the whole vocabulary

Reals = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class _Filters:
    """Filter parameters of K rows."""

    top_k: Ints
    top_p: Reals
    min_p: Reals

    def select(self, rows: Rows) -> _Filters:
        return _Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def draw(logits: torch.Tensor, inputs: SamplingInputs, rows: Rows, seeds: NDArray[np.uint64]) -> Ints:
    """Sample one token id for each of `rows` of logits [·, V]. A row's result does not depend on other rows."""
    selected = logits if len(rows) == len(logits) else logits[rows]  # [K, V]
    scaled = selected / torch.from_numpy(inputs.temperature[rows]).unsqueeze(1)
    weights = scaled.sub_(scaled.amax(-1, keepdim=True)).exp_()  # [K, V], at most 1
    uniforms = uniform(seeds[rows], inputs.positions[rows])
    top_k, top_p, min_p = inputs.top_k[rows], inputs.top_p[rows], inputs.min_p[rows]
    is_filtered = inputs.is_filtered[rows]
    if not np.count_nonzero(is_filtered):
        return _draw_by_weight(weights, uniforms)
    filters = _Filters(top_k, top_p.astype(np.float64), min_p.astype(np.float64))
    most = np.where(top_k <= _NUM_CANDIDATES, _NUM_CANDIDATES, _MANY_CANDIDATES)
    most[~is_filtered] = 0
    token_ids = np.empty(len(rows), np.int32)
    for num_candidates in np.unique(most):
        chosen = np.flatnonzero(most == num_candidates)
        part = weights if len(chosen) == len(rows) else weights[chosen]
        if num_candidates == 0:
            token_ids[chosen] = _draw_by_weight(part, uniforms[chosen])
        else:
            token_ids[chosen] = _draw_filtered(part, uniforms[chosen], filters.select(chosen), int(num_candidates))
    return token_ids


def _draw_filtered(weights: torch.Tensor, uniforms: Reals, filters: _Filters, num_candidates: int) -> Ints:
    """Sample from the filtered weights [K, V]; searches all tokens only if the candidates do not suffice."""
    num_rows, vocab_size = weights.shape
    top, top_ids = (found.numpy() for found in _likeliest(weights, min(num_candidates, vocab_size)))  # [K, M]
    remaining, is_final = _filter_candidates(top.astype(np.float64), weights, filters)
    by_id = top_ids.argsort(1)
    cumulative = np.take_along_axis(remaining, by_id, 1).cumsum(1)  # [K, M]
    index = (cumulative <= (uniforms * cumulative[:, -1])[:, None]).sum(1)  # first beyond the target
    rows = np.arange(num_rows)
    token_ids: Ints = top_ids[rows, by_id[rows, index]].astype(np.int32)
    wide = np.flatnonzero(~is_final)
    if len(wide):
        token_ids[wide] = _draw_by_weight(_filter_all(weights[wide], filters.select(wide)), uniforms[wide])
    return token_ids


def _likeliest(weights: torch.Tensor, num_candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the M largest of each row of weights [K, V] and their ids, descending, both [K, M].

    In a large vocabulary only the M spans with the largest maxima are searched: the M largest weights are in these.
    """
    num_rows, vocab_size = weights.shape
    if vocab_size < 2 * _SPAN * num_candidates:
        return weights.topk(num_candidates)
    if vocab_size % _SPAN:
        weights = functional.pad(weights, (0, -vocab_size % _SPAN))
    spans = weights.view(num_rows, -1, _SPAN)  # [K, spans, SPAN]
    best = spans.amax(-1).topk(num_candidates).indices  # [K, M], spans
    within = spans.gather(1, best.unsqueeze(2).expand(-1, -1, _SPAN)).flatten(1)  # [K, M × SPAN]
    top, indices = within.topk(num_candidates)  # [K, M]
    return top, best.gather(1, indices // _SPAN) * _SPAN + indices % _SPAN


def _filter_candidates(candidates: Reals, weights: torch.Tensor, filters: _Filters) -> tuple[Reals, NDArray[np.bool_]]:
    """Return candidates [K, M] with filtered ones set to 0, and whether each row's filters leave no other token."""
    num_rows, num_candidates = candidates.shape
    vocab_size, rows = weights.shape[1], np.arange(num_rows)
    top_p, min_p = filters.top_p, filters.min_p
    top_k = np.where(filters.top_k > 0, np.minimum(filters.top_k, vocab_size), vocab_size)
    is_limited = top_k <= num_candidates
    least = np.where(is_limited, candidates[rows, np.minimum(top_k, num_candidates) - 1], 0.0)  # [K], of top_k
    remaining = np.where(candidates >= least[:, None], candidates, 0.0)  # [K, M]
    cumulative = remaining.cumsum(1)
    mass = np.where(is_limited, cumulative[:, -1], weights.sum(-1).numpy())  # [K], the whole that top_p refers to
    index = (cumulative < (top_p * mass)[:, None]).sum(
        1
    )  # index of the last token that top_p needs; M if all M tokens are too few
    nucleus = candidates[rows, np.minimum(index, num_candidates - 1)]
    threshold = np.maximum(np.maximum(least, min_p), np.where((top_p < 1) & (index < num_candidates), nucleus, 0.0))
    # Tokens outside the candidates are at most as likely as the last candidate.
    is_final = (candidates[:, -1] < threshold) | (num_candidates == vocab_size)
    is_limited_by_more = (filters.top_k > 0) & ~is_limited  # top_p then refers to a part that is not known yet
    is_final &= ~is_limited_by_more | (num_candidates == vocab_size)
    threshold = np.minimum(threshold, candidates[:, 0])  # the most likely token is never filtered
    return np.where(candidates >= threshold[:, None], candidates, 0.0), is_final


def _filter_all(weights: torch.Tensor, filters: _Filters) -> torch.Tensor:
    """Set filtered weights [K, V] to 0, in place. Equal weights are treated alike."""
    thresholds = filters.min_p.copy()
    for row, (top_k, top_p) in enumerate(zip(filters.top_k.tolist(), filters.top_p.tolist(), strict=True)):
        if top_k > 0:
            least = weights[row].topk(min(top_k, weights.shape[1])).values[-1]
            weights[row].mul_(weights[row] >= least)
        if top_p < 1:
            thresholds[row] = max(thresholds[row], _nucleus_threshold(weights[row].numpy(), top_p))
    return weights.mul_(weights >= torch.from_numpy(thresholds.astype(np.float32)).unsqueeze(1))


def _draw_by_weight(weights: torch.Tensor, uniforms: Reals) -> Ints:
    """Return one id for each row of weights [K, V]: the first at which the cumulative sum exceeds the target.

    Searches the sums of spans first, then the span that contains the target.
    """
    num_rows, vocab_size = weights.shape
    if vocab_size % _SPAN:
        weights = functional.pad(weights, (0, -vocab_size % _SPAN))
    spans = weights.view(num_rows, -1, _SPAN)  # [K, spans, SPAN]
    until = spans.sum(-1).cumsum(-1)  # [K, spans]
    target = _below(torch.from_numpy(uniforms.astype(np.float32)).unsqueeze(1) * until[:, -1:], until[:, -1:])  # [K, 1]
    span = torch.searchsorted(until, target, right=True)  # [K, 1]
    before = functional.pad(until, (1, 0)).gather(1, span)  # [K, 1]
    inside = spans[torch.arange(num_rows), span.squeeze(1)].cumsum(-1)  # [K, SPAN]
    offset = torch.searchsorted(inside, _below(target - before, inside[:, -1:]), right=True)
    return (span * _SPAN + offset).squeeze(1).numpy().astype(np.int32)


def _below(target: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Return `target` limited to less than `total`, which rounding can reach: a weight of 0 must not be sampled."""
    return torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))


def _nucleus_threshold(weights: Floats, top_p: float) -> float:
    """Return the largest weight such that the weights [V] from it upwards sum to at least `top_p` of the total.

    Splits at the mean and continues on the side of the threshold, so that all passes together read a few times V.
    """
    target = top_p * float(weights.sum(dtype=np.float64))
    above, remaining = 0.0, weights
    while len(remaining) > _NUM_CANDIDATES:
        is_upper = remaining > remaining.mean()
        upper = float(remaining[is_upper].sum(dtype=np.float64))
        if not is_upper.any():  # all equal
            break
        if above + upper >= target:
            remaining = remaining[is_upper]
        else:
            above, remaining = above + upper, remaining[~is_upper]
    descending = np.sort(remaining)[::-1]
    index = np.searchsorted(above + descending.cumsum(dtype=np.float64), target)
    return float(descending[min(int(index), len(descending) - 1)])
