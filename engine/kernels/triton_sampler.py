"""The sampler's draw in Triton: several programs per row and launch, which never sort a row.

| Launch | Work |
|---|---|
| `_scan` | largest logit and weight of each split of a row; amounts above sixteen pivots below its largest logit |
| `_measure`, twice | amounts above sixteen pivots inside the bracket that holds the threshold |
| `_gather` | the logits inside the bracket, stored one behind the other |
| `finish` of `triton_pick.py` | the exact threshold, found among these logits, and the token |

The amount is the number of tokens if a row has a top-k, and their weight if it has only a top-p. A step without either
needs the first and the last launch only. A launch leaves its sums in memory, and the next one adds them up in a fixed
order before it starts; programs with nothing to do exit at once. The bracket holds few logits after one or two
`_measure`. Where it does not, as in a row of equal logits, `finish` searches the whole row.

The number of splits depends on the vocabulary only, so a row's token does not depend on its batch. The rule is that of
`engine/sampling/draw.py`; results differ only where rounding decides. With TRITON_INTERPRET=1 the kernels run on a CPU.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: K rows, V vocabulary, S splits.
"""

import functools

import torch
import triton
import triton.language as tl

from engine.kernels.triton_pick import (
    ABOVE,
    ABOVE_KEPT,
    BAD,
    BEST,
    COUNT,
    MASS,
    NUM_PARTS,
    PEAK,
    STATE_WIDTH,
    above_top,
    finish,
    load_logits,
    read_row,
    sum_masses,
    top_of,
)

_SPLIT = 4096  # logits of one program
_ROOM = 512  # logits inside the bracket that are stored for each split
_ENOUGH = 128  # per split; a bracket with fewer logits is not divided further
_NUM_PASSES = 2  # number of launches of `_measure`
_PIVOTS = tl.constexpr(16)
_MAX_STEPS = tl.constexpr(4_194_304.0)  # beyond, multiples of the step are not exact in float32
_NUM_WARPS = 4


@triton.jit
def _next_step(peak, step):
    """Return the number of a multiple of `step` above `peak`: the first or the second."""
    return tl.floor(peak / step) + 1


@triton.jit
def _pivots(low, high, step, index):
    """Return pivot `index` of sixteen, which descend from below `high` to `low`."""
    even = tl.where(index == _PIVOTS - 1, low, high - (high - low) * ((index + 1) / _PIVOTS))
    return tl.where(low == float("-inf"), high - step * tl.exp2(index.to(tl.float32)), even)


@triton.jit
def _narrow(found, pivots, low, high, before, wanted, top, scale, top_k, enough: tl.constexpr):
    """Return (low, high, amount from `high` upwards, 1 if few logits are left) of the part of a bracket that holds the
    threshold, given what the splits found from each pivot upwards [S, 16]."""
    index, amounts = tl.arange(0, _PIVOTS), tl.sum(found, 0)  # [16], ascending
    num_short = tl.sum((amounts < wanted).to(tl.int32))
    low = tl.maximum(low, tl.max(tl.where(index == num_short, pivots, float("-inf"))))
    high = tl.where(num_short > 0, tl.min(tl.where(index < num_short, pivots, float("inf"))), high)
    before = tl.where(num_short > 0, tl.max(tl.where(index < num_short, amounts, 0.0)), before)
    until = tl.min(tl.where(index >= num_short, amounts, float("inf")))
    most = tl.where(top_k > 0, until, (until - before) / tl.exp2((low - top) * scale))  # logits inside, at most
    return low, high, before, tl.where(most <= enough, 1.0, 0.0)


@triton.jit
def _bracket(
    columns,
    parts,
    sums,
    states,
    num_columns,
    vocab_size,
    step,
    is_first: tl.constexpr,
    splits: tl.constexpr,
    enough: tl.constexpr,
):
    """Return (low, high, 1 if there is nothing to measure, largest logit) for pass `step`, from 1.

    The tokens from `low` upwards have at least the wanted amount, those from `high` upwards have less. `high` is
    infinite for rows without a search. `states` [passes, K, STATE_WIDTH] has the brackets of all passes; this one is
    added to it.
    """
    number, num_rows = tl.program_id(0), tl.num_programs(0)
    state = states + ((step - 1) * num_rows + number) * STATE_WIDTH
    index, piece = tl.arange(0, _PIVOTS), tl.arange(0, splits)
    temperature = tl.load(columns + number).to(tl.float32, bitcast=True)
    scale, top_k, top_p, _ = read_row(columns, num_columns, number, vocab_size)
    low, high, before, done, wanted, top = float("-inf"), float("inf"), 0.0, 1.0, 0.0, 0.0
    if is_first:
        if (scale > 0.0) & ((top_k > 0) | (top_p < 1.0)):
            peaks = tl.load(parts + (PEAK * num_rows + number) * splits + piece)
            top = top_of(parts, number, num_rows, splits)
            wanted = top_p * tl.sum(sum_masses(parts, number, num_rows, top, scale, splits))
            wanted = tl.where(top_k > 0, top_k.to(tl.float32), wanted)
            first = _next_step(peaks, temperature)  # [S]
            most = tl.max(first)
            entry = index[None, :] - tl.minimum(most - first, 64.0).to(tl.int32)[:, None]
            found = tl.load(sums + (number * splits + piece[:, None]) * _PIVOTS + entry, mask=entry >= 0, other=0.0)
            found *= tl.where(top_k > 0, 1.0, tl.exp2((peaks - top) * scale))[:, None]
            high = (most + 1) * temperature
            low, high, before, done = _narrow(
                found, (most - index) * temperature, low, high, before, wanted, top, scale, top_k, enough
            )
            if tl.abs(most) >= _MAX_STEPS:
                low, high, before, done = float("-inf"), above_top(top), 0.0, 0.0
    else:
        last = state - num_rows * STATE_WIDTH
        low, high, before, done = tl.load(last), tl.load(last + 1), tl.load(last + 2), tl.load(last + 3)
        wanted, top = tl.load(last + 4), tl.load(last + 5)
        if done == 0.0:
            peaks = tl.load(parts + (PEAK * num_rows + number) * splits + piece)
            out = sums + (((step - 1) * num_rows + number) * splits + piece[:, None]) * _PIVOTS + index[None, :]
            found = tl.load(out, mask=peaks[:, None] >= low, other=0.0)
            pivots = _pivots(low, high, temperature, index)
            low, high, before, done = _narrow(found, pivots, low, high, before, wanted, top, scale, top_k, enough)
    if tl.program_id(1) == 0:
        tl.store(state, low)
        tl.store(state + 1, high)
        tl.store(state + 2, before)
        tl.store(state + 3, done)
        tl.store(state + 4, wanted)
        tl.store(state + 5, top)
    return low, high, done, top


@triton.jit(do_not_specialize=["num_columns"])
def _scan(
    all_logits,
    all_masks,
    row_slots,
    columns,
    parts,
    sums,
    logits_stride,
    masks_stride,
    num_columns,
    vocab_size,
    has_filters: tl.constexpr,
    has_mask: tl.constexpr,
    splits: tl.constexpr,
    split_size: tl.constexpr,
):
    """Store in `parts` [NUM_PARTS, K, S] the largest logit of a split, its first id, the sum of the weights relative to
    it, and 1 if a logit is not finite. Store in `sums` [K, S, 16] the amounts from each pivot upwards. Pivots are
    multiples of the temperature, so that those of all splits agree."""
    number, split = tl.program_id(0), tl.program_id(1)
    if tl.load(row_slots + number) >= 0:
        scale, top_k, top_p, _ = read_row(columns, num_columns, number, vocab_size)
        row = all_logits + number.to(tl.int64) * logits_stride
        masks = all_masks + number.to(tl.int64) * masks_stride
        ids = split * split_size + tl.arange(0, split_size)
        raw = tl.load(row + ids, mask=ids < vocab_size, other=0.0).to(tl.float32)
        is_bad = tl.max(tl.where(tl.abs(raw) < float("inf"), 0, 1))
        logits = load_logits(row, masks, ids, vocab_size, has_mask)
        peak = tl.max(logits)
        at = parts + number * splits + split
        field = tl.num_programs(0) * splits
        tl.store(at + PEAK * field, peak)
        tl.store(at + BEST * field, tl.min(tl.where(logits == peak, ids, 0x7FFFFFFF)).to(tl.float32))
        tl.store(at + BAD * field, is_bad.to(tl.float32))
        if scale > 0.0:
            weights = tl.exp2((logits - tl.where(peak == float("-inf"), 0.0, peak)) * scale)
            tl.store(at + MASS * field, tl.sum(weights))
            if has_filters:  # noqa: SIM102, known when the kernel is compiled
                if (top_k > 0) | (top_p < 1.0):
                    temperature = tl.load(columns + number).to(tl.float32, bitcast=True)
                    first = _next_step(peak, temperature)
                    amounts = tl.where(top_k > 0, 1.0, weights)
                    out = sums + (number * splits + split) * _PIVOTS
                    for index in tl.static_range(_PIVOTS):
                        pivot = (first - index) * temperature
                        tl.store(out + index, tl.sum((logits >= pivot).to(tl.float32) * amounts))


@triton.jit(do_not_specialize=["num_columns", "step"])
def _measure(
    all_logits,
    all_masks,
    row_slots,
    columns,
    parts,
    sums,
    states,
    logits_stride,
    masks_stride,
    num_columns,
    vocab_size,
    step,
    is_first: tl.constexpr,
    has_mask: tl.constexpr,
    splits: tl.constexpr,
    split_size: tl.constexpr,
    enough: tl.constexpr,
):
    """Store in `sums` [passes, K, S, 16] the amounts from each pivot of the bracket upwards."""
    number, split = tl.program_id(0), tl.program_id(1)
    if tl.load(row_slots + number) >= 0:
        low, high, done, top = _bracket(
            columns, parts, sums, states, num_columns, vocab_size, step, is_first, splits, enough
        )
        num_rows = tl.num_programs(0)
        if (done == 0.0) & (tl.load(parts + (PEAK * num_rows + number) * splits + split) >= low):
            scale, top_k, _, _ = read_row(columns, num_columns, number, vocab_size)
            temperature = tl.load(columns + number).to(tl.float32, bitcast=True)
            row = all_logits + number.to(tl.int64) * logits_stride
            masks = all_masks + number.to(tl.int64) * masks_stride
            ids = split * split_size + tl.arange(0, split_size)
            logits = load_logits(row, masks, ids, vocab_size, has_mask)
            amounts = tl.where(top_k > 0, 1.0, tl.exp2((logits - top) * scale))
            out = sums + ((step * num_rows + number) * splits + split) * _PIVOTS
            for index in tl.static_range(_PIVOTS):
                pivot = _pivots(low, high, temperature, tl.full([], index, tl.int32))
                tl.store(out + index, tl.sum((logits >= pivot).to(tl.float32) * amounts))


@triton.jit(do_not_specialize=["num_columns", "step"])
def _gather(
    all_logits,
    all_masks,
    row_slots,
    columns,
    parts,
    sums,
    states,
    stored,
    logits_stride,
    masks_stride,
    num_columns,
    vocab_size,
    step,
    is_first: tl.constexpr,
    has_mask: tl.constexpr,
    splits: tl.constexpr,
    split_size: tl.constexpr,
    enough: tl.constexpr,
    room: tl.constexpr,
):
    """Store the logits of the bracket in `stored` [K, S, room]; for top-k, all from `low` upwards. Store in `parts`
    their number, and the weights above the bracket: all, and those that min-p keeps."""
    number, split = tl.program_id(0), tl.program_id(1)
    if tl.load(row_slots + number) >= 0:
        low, high, _, top = _bracket(
            columns, parts, sums, states, num_columns, vocab_size, step, is_first, splits, enough
        )
        num_rows = tl.num_programs(0)
        at = parts + number * splits + split
        field = num_rows * splits
        count, above, above_kept = 0.0, 0.0, 0.0
        if (high < float("inf")) & (tl.load(at + PEAK * field) >= low):
            scale, top_k, _, min_p = read_row(columns, num_columns, number, vocab_size)
            row = all_logits + number.to(tl.int64) * logits_stride
            masks = all_masks + number.to(tl.int64) * masks_stride
            ids = split * split_size + tl.arange(0, split_size)
            logits = load_logits(row, masks, ids, vocab_size, has_mask)
            is_inside = (logits >= low) & (logits < tl.where(top_k > 0, float("inf"), high))
            count = tl.sum(is_inside.to(tl.float32))
            if (count > 0.0) & (count <= room):
                place = tl.cumsum(is_inside.to(tl.int32), 0) - 1
                tl.store(stored + (number * splits + split) * room + place, logits, mask=is_inside)
            if top_k == 0:
                weights = tl.where(logits >= high, tl.exp2((logits - top) * scale), 0.0)
                above = tl.sum(weights)
                above_kept = above
                if min_p > 0.0:
                    above_kept = tl.sum(tl.where(weights >= min_p, weights, 0.0))
        tl.store(at + COUNT * field, count)
        tl.store(at + ABOVE * field, above)
        tl.store(at + ABOVE_KEPT * field, above_kept)


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
    """Sample a token for each row of logits [K, V], float32 or bfloat16. Return int32 [2, K]: token ids, and 1 for rows
    that are not finite, whose token is 0.

    `columns` is float32 [NUM_COLUMNS, K], see `engine.sampling.packed`. Without `has_top_k` and `has_top_p`, no row may
    have a top-k or top-p. Nothing is done for rows whose entry in `row_slots`, int32 [K], is negative; tokens of others
    are also stored at their slot of `last_tokens`, int32, if given. `masks` uint8 [K, ceil(V / 8)] has a bit for each
    allowed token. Waits for nothing.
    """
    num_rows, vocab_size = logits.shape
    splits = triton.next_power_of_2(triton.cdiv(vocab_size, _SPLIT))
    has_filters = has_top_k or has_top_p
    empty = functools.partial(torch.empty, dtype=torch.float32, device=logits.device)
    parts = empty(NUM_PARTS, num_rows, splits)
    sums = states = stored = parts
    if has_filters:
        sums = empty(_NUM_PASSES + 1, num_rows, splits, _PIVOTS.value)
        states = empty(_NUM_PASSES + 1, num_rows, STATE_WIDTH.value)
        stored = empty(num_rows, splits, _ROOM)
    tokens = torch.empty(2, num_rows, dtype=torch.int32, device=logits.device)
    numbers = columns.view(torch.int32)
    rows = (logits, logits if masks is None else masks, row_slots, numbers, parts)
    sizes = (logits.stride(0), 0 if masks is None else masks.stride(0), numbers.stride(0), vocab_size)
    shape = {"has_mask": masks is not None, "splits": splits, "split_size": _SPLIT}
    grid, warps, enough = (num_rows, splits), {"num_warps": _NUM_WARPS}, splits * _ENOUGH
    _scan[grid](*rows, sums, *sizes, has_filters=has_filters, **shape, **warps)
    if has_filters:
        for step in range(1, _NUM_PASSES + 1):
            _measure[grid](*rows, sums, states, *sizes, step, is_first=step == 1, enough=enough, **shape, **warps)
        last = {"is_first": False, "enough": enough, "room": _ROOM}
        _gather[grid](*rows, sums, states, stored, *sizes, _NUM_PASSES + 1, **last, **shape, **warps)
    finish[(num_rows,)](
        *rows, states, stored, tokens if last_tokens is None else last_tokens, tokens, *sizes, _NUM_PASSES,
        has_filters=has_filters, has_slots=last_tokens is not None, room=_ROOM, **shape, num_warps=2 * _NUM_WARPS,
    )  # fmt: skip
    return tokens
