"""Logits -> token ids: greedy, or drawn from what temperature and filters leave, the same for a row in any batch.

A row's random number, one a token, comes from its seed and the index of the token being drawn; rows share nothing. A
draw that a constraint refuses is made again among what it allows, with a second number.
Where a filter is set, the likeliest candidates are taken first and the draw happens among them if they are all that it
leaves. The vocabulary is never sorted and never filled with noise. Knows no sequences and no text.

Letters: K rows, V vocabulary, M candidates, C constrained rows. Order: what a constraint allows, bias, penalties,
temperature, top-k, top-p, min-p. Log-probabilities are of the model's own distribution, before all of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from engine.arrays import Floats, Ints
from engine.inputs import PromptLogprobRows, SamplingInputs, StepOutput, TokenHistory, TokenLogprobs
from engine.kernels.native.library import find_library

_NUM_CANDIDATES = 64
_MANY_CANDIDATES = 1024  # for rows whose top_k asks for more than the usual few
_MOST_CHOSEN = 8192  # tokens that a constraint leaves, up to which they are drawn from one row at a time
_ROWS_AT_ONCE = 64  # of which prompts' tokens are scored
_SPAN = 128  # ids summed together when the whole vocabulary is drawn from
_SECOND = np.uint64(0x5851F42D4C957F2D)  # makes the seed of a second draw
_STEP = 0x9E3779B97F4A7C15
_LEAST_REPETITION = np.float32(1e-3)  # it divides
_LEAST_TEMPERATURE = 1e-5  # below, the division overflows and the draw is the greedy one anyway

# [256, 8]: for each byte of a mask, what is added to the logits of its eight tokens. Adding is ten times as fast as
# filling where a mask says so.
_RULED_OUT = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf)
_RULED_OUT = _RULED_OUT.astype(np.float32)

Reals = NDArray[np.float64]
Rows = NDArray[np.intp]


def sample(logits: torch.Tensor, inputs: SamplingInputs) -> StepOutput:
    """float32 logits [K, V] -> one token a row. Rows with a bias, penalties or a constraint are changed in place."""
    is_failed = ~np.isfinite(logits.sum(-1).numpy())  # [K]; a sum is finite only if every term is
    asked = np.flatnonzero(inputs.num_logprobs >= 0)
    raw = torch.log_softmax(logits[asked], -1) if len(asked) else None  # [rows asked, V]
    if inputs.constrained is not None:
        _rule_out(logits, *inputs.constrained.initial_masks(_looks_further(inputs)))
    for bias in inputs.biases:
        logits[bias.row].numpy()[bias.token_ids] += bias.values
    for history in inputs.histories:
        _penalise(logits[history.row].numpy(), history, inputs)
    token_ids = logits.numpy().argmax(1).astype(np.int32)  # [K]
    drawn = np.flatnonzero((inputs.temperature >= _LEAST_TEMPERATURE) & ~is_failed)
    if len(drawn):
        token_ids[drawn] = _draw(logits, inputs, drawn, inputs.seeds)
    if inputs.constrained is not None:
        refused = inputs.constrained.accept(token_ids, is_failed)
        if refused:
            token_ids[refused] = _draw_again(logits, inputs, refused, inputs.constrained.rejected_masks())
            inputs.constrained.accept_resampled(token_ids, is_failed)
    failed = is_failed if is_failed.any() else None
    if raw is None:
        return StepOutput(token_ids, failed)
    return StepOutput(token_ids, failed, *_logprobs(raw, token_ids, asked, inputs.num_logprobs))


def sample_from_device(logits: torch.Tensor, inputs: SamplingInputs) -> StepOutput:
    """As `sample`, of logits on a device: where every row just takes its likeliest token they stay there, and two
    numbers a row come back."""
    is_plain = inputs.constrained is None and not inputs.biases and not inputs.histories
    if not is_plain or (inputs.temperature >= _LEAST_TEMPERATURE).any() or (inputs.num_logprobs >= 0).any():
        return sample(logits.cpu(), inputs)
    token_ids, is_finite = torch.stack((logits.argmax(1), logits.sum(-1).isfinite().long())).cpu().numpy()
    is_failed = is_finite == 0  # [K]
    return StepOutput(token_ids.astype(np.int32), is_failed if is_failed.any() else None)


def score(logits: torch.Tensor, wanted: PromptLogprobRows) -> TokenLogprobs:
    """Of float32 logits [L, V], the log-probabilities of the tokens that are wanted."""
    num_wanted, most = len(wanted.rows), min(wanted.num_tops, logits.shape[1])
    found = TokenLogprobs(
        np.empty(num_wanted, np.float32),
        np.empty((num_wanted, most), np.int32),
        np.empty((num_wanted, most), np.float32),
    )
    for first in range(0, num_wanted, _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        rows, token_ids = torch.from_numpy(wanted.rows[part]), torch.from_numpy(wanted.token_ids[part]).long()
        logprobs = torch.log_softmax(logits[rows.to(logits.device)], -1)  # [≤ 64, V]
        own = logprobs.gather(1, token_ids.to(logits.device).unsqueeze(1))  # [≤ 64, 1]
        found.logprobs[part] = own.squeeze(1).cpu().numpy()
        if most:
            values, ids = logprobs.topk(most)
            found.top_logprobs[part], found.top_ids[part] = values.cpu().numpy(), ids.cpu().numpy()
    return found


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> Reals:
    """One number in [0, 1) for each (seed, position): SplitMix64 of the mixed seed, stepped to the position."""
    step = np.uint64(_STEP)
    state = _mix(_mix(seeds.astype(np.uint64) + step) + (positions.astype(np.uint64) + np.uint64(1)) * step)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _looks_further(inputs: SamplingInputs) -> NDArray[np.bool_]:
    """[K], whose filters have to see what a constraint leaves. All other draws may be made without, and again if the
    constraint refuses the token: both ways a token comes as often as it is likely among those allowed."""
    if not np.count_nonzero(inputs.is_filtered):
        return inputs.is_filtered
    return inputs.is_filtered & (inputs.temperature >= _LEAST_TEMPERATURE)


def _rule_out(logits: torch.Tensor, rows: list[int], bits: NDArray[np.uint8]) -> None:
    """Leave `rows` of logits [K, V] only what their masks `bits` [rows, bytes] allow."""
    if rows:
        ruled_out = _RULED_OUT.take(bits, axis=0).reshape(len(bits), -1)[:, : logits.shape[1]]  # [rows, V]
        every = logits.numpy()
        if len(rows) == len(every):
            np.add(every, ruled_out, out=every)
        else:
            every[rows] += ruled_out


def _draw_again(logits: torch.Tensor, inputs: SamplingInputs, rows: list[int], bits: NDArray[np.uint8]) -> Ints:
    """For `rows` whose first draw was refused, by another random number, among what their masks `bits` allow. That is
    rarely much, and then no operator over the vocabulary is needed."""
    token_ids = _draw_few_natively(logits, inputs, rows, bits)
    if token_ids is None:
        token_ids = _draw_few(logits.numpy(), inputs, rows, bits)
    is_filtered = _looks_further(inputs)[rows] if np.count_nonzero(inputs.is_filtered) else None
    if is_filtered is None and min(token_ids.tolist()) >= 0:
        return token_ids
    wide = np.flatnonzero(token_ids < 0 if is_filtered is None else (token_ids < 0) | is_filtered)
    left = np.array(rows)[wide]
    if len(wide):
        _rule_out(logits, left.tolist(), bits[wide])
        token_ids[wide] = logits.numpy()[left].argmax(1)
    drawn = np.flatnonzero(inputs.temperature[left] >= _LEAST_TEMPERATURE)
    if len(drawn):
        token_ids[wide[drawn]] = _draw(logits, inputs, left[drawn], inputs.seeds ^ _SECOND)
    return token_ids


def _draw_few(logits: Floats, inputs: SamplingInputs, rows: list[int], bits: NDArray[np.uint8]) -> Ints:
    """What `rows` draw where few tokens are allowed, filters left aside; -1 elsewhere."""
    allows = np.unpackbits(bits, axis=1, count=logits.shape[1], bitorder="little").view(np.bool_)  # [rows, V]
    token_ids = np.full(len(rows), -1, np.int32)
    numbers = uniform(inputs.seeds[rows] ^ _SECOND, inputs.positions[rows]).tolist()
    for place, row in enumerate(rows):
        allowed = allows[place].nonzero()[0]
        if 0 < len(allowed) <= _MOST_CHOSEN:
            token_ids[place] = allowed[_choose(logits[row, allowed], float(inputs.temperature[row]), numbers[place])]
    return token_ids


def _draw_few_natively(
    logits: torch.Tensor, inputs: SamplingInputs, rows: list[int], bits: NDArray[np.uint8]
) -> Ints | None:
    """The same in one call of the compiled library; None where there is none."""
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
        int(_SECOND),
        _LEAST_TEMPERATURE,
    )
    return token_ids


def _choose(logits: Floats, temperature: float, number: float) -> int:
    """Which of a few logits [M] is drawn by a random number in [0, 1)."""
    best = int(logits.argmax())
    if temperature < _LEAST_TEMPERATURE or not np.isfinite(logits[best]):
        return best
    until = np.exp((logits - logits[best]) / np.float32(temperature)).cumsum(dtype=np.float64)
    return min(int(until.searchsorted(number * until[-1], side="right")), len(logits) - 1)


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
    """The parameters of rows that draw; all [K]."""

    top_k: Ints
    top_p: Reals
    min_p: Reals

    def only(self, rows: Rows) -> _Filters:
        return _Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def _draw(logits: torch.Tensor, inputs: SamplingInputs, rows: Rows, seeds: NDArray[np.uint64]) -> Ints:
    """One token id for each of `rows` of logits [·, V]. A row's path depends on its own parameters alone."""
    selected = logits if len(rows) == len(logits) else logits[rows]  # [K, V]
    scaled = selected / torch.from_numpy(inputs.temperature[rows]).unsqueeze(1)
    weights = scaled.sub_(scaled.amax(-1, keepdim=True)).exp_()  # [K, V], the likeliest has 1
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
            token_ids[chosen] = _draw_filtered(part, uniforms[chosen], filters.only(chosen), int(num_candidates))
    return token_ids


def _draw_filtered(weights: torch.Tensor, uniforms: Reals, filters: _Filters, num_candidates: int) -> Ints:
    """Draw from rows [K, V], likeliest first, where the candidates are all that the filters leave."""
    num_rows, vocab_size = weights.shape
    top, top_ids = _likeliest(weights, min(num_candidates, vocab_size))  # [K, M], descending
    kept, is_settled = _filter_candidates(top.numpy().astype(np.float64), weights, filters)
    cumulative = kept.cumsum(1)  # [K, M]
    index = (cumulative <= (uniforms * cumulative[:, -1])[:, None]).sum(1)  # first candidate beyond the target
    token_ids = top_ids.numpy()[np.arange(num_rows), index].astype(np.int32)
    wide = np.flatnonzero(~is_settled)
    if len(wide):
        token_ids[wide] = _draw_by_weight(_filter_all(weights[wide], filters.only(wide)), uniforms[wide])
    return token_ids


def _likeliest(weights: torch.Tensor, num_candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of each row of weights [K, V] and their ids, descending, both [K, M].

    In a large vocabulary they are looked for only in the M spans with the largest maxima, where they must be.
    """
    num_rows, vocab_size = weights.shape
    if vocab_size < 2 * _SPAN * num_candidates:
        return weights.topk(num_candidates)
    if vocab_size % _SPAN:
        weights = functional.pad(weights, (0, -vocab_size % _SPAN))
    spans = weights.view(num_rows, -1, _SPAN)  # [K, spans, SPAN]
    best = spans.amax(-1).topk(num_candidates).indices  # [K, M], spans
    within = spans.gather(1, best.unsqueeze(2).expand(-1, -1, _SPAN)).flatten(1)  # [K, M × SPAN]
    top, places = within.topk(num_candidates)  # [K, M]
    return top, best.gather(1, places // _SPAN) * _SPAN + places % _SPAN


def _filter_candidates(candidates: Reals, weights: torch.Tensor, filters: _Filters) -> tuple[Reals, NDArray[np.bool_]]:
    """candidates [K, M] with what the filters remove set to 0, and for each row whether nothing beyond M may stay."""
    num_candidates, vocab_size = candidates.shape[1], weights.shape[1]
    top_k, top_p, min_p = np.minimum(filters.top_k, vocab_size), filters.top_p, filters.min_p
    is_limited = ((top_k > 0) & (top_k <= num_candidates)) | (num_candidates == vocab_size)
    is_removed = (top_k > 0)[:, None] & (np.arange(num_candidates) >= top_k[:, None])
    kept = np.where(is_removed, 0.0, candidates)  # [K, M]
    cumulative = kept.cumsum(1)
    mass = np.where(is_limited, cumulative[:, -1], weights.sum(-1).numpy())  # [K], what top_p is a part of
    is_covered = ((top_p < 1) & (cumulative[:, -1] >= top_p * mass)) | (candidates[:, -1] < min_p)
    is_settled = is_limited | (is_covered & (top_k == 0))
    is_kept = (cumulative - kept < (top_p * mass)[:, None]) & (kept >= min_p[:, None])
    is_kept[:, 0] = True  # whatever was asked, the likeliest stays
    return np.where(is_kept, kept, 0.0), is_settled


def _filter_all(weights: torch.Tensor, filters: _Filters) -> torch.Tensor:
    """weights [K, V] with what the filters remove set to 0, in place. Equal weights stay or go together."""
    thresholds = filters.min_p.copy()
    for row, (top_k, top_p) in enumerate(zip(filters.top_k.tolist(), filters.top_p.tolist(), strict=True)):
        if top_k > 0:
            least = weights[row].topk(min(top_k, weights.shape[1])).values[-1]
            weights[row].mul_(weights[row] >= least)
        if top_p < 1:
            thresholds[row] = max(thresholds[row], _nucleus_threshold(weights[row].numpy(), top_p))
    return weights.mul_(weights >= torch.from_numpy(thresholds.astype(np.float32)).unsqueeze(1))


def _draw_by_weight(weights: torch.Tensor, uniforms: Reals) -> Ints:
    """One id for each row of weights [K, V], whose likeliest is 1: the first at which the sum passes the target.

    Sums of spans first, then inside the span that holds the target.
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
    """target, but less than total, which rounding may have reached: so that a weight of 0 is never drawn."""
    return torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))


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
