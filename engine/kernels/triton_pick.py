"""The last launch of `triton_sampler.py`: find each row's exact threshold and its token. Has the functions and fields
that its launches share.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: K rows, V vocabulary, S splits.
"""

import triton
import triton.language as tl

from engine.sampling import packed

# Fields of `parts` [NUM_PARTS, K, S], about the logits of one split of a row.
PEAK = tl.constexpr(0)  # largest logit
MASS = tl.constexpr(1)  # sum of the weights relative to the largest
BEST = tl.constexpr(2)  # first id of the largest
BAD = tl.constexpr(3)  # 1 if a logit is not finite
COUNT = tl.constexpr(4)  # logits inside the bracket
ABOVE = tl.constexpr(5)  # sum of the weights above the bracket
ABOVE_KEPT = tl.constexpr(6)  # sum of the weights above the bracket that reach min-p
NUM_PARTS = 7
STATE_WIDTH = tl.constexpr(8)  # low, high, amount above, is done, wanted amount, largest logit

_TEMPERATURE, _TOP_P, _MIN_P = (tl.constexpr(each) for each in (packed.TEMPERATURE, packed.TOP_P, packed.MIN_P))
_TOP_K, _POSITION = tl.constexpr(packed.TOP_K), tl.constexpr(packed.POSITION)
_SEED_LOW, _SEED_HIGH = tl.constexpr(packed.SEED_LOW), tl.constexpr(packed.SEED_HIGH)
_LOG2_E = tl.constexpr(1.4426950408889634)
_BELOW_ONE = tl.constexpr(1 - 2.0**-24)
_NO_ID = tl.constexpr(0x7FFFFFFF)
_TILE = tl.constexpr(4096)  # logits that `finish` holds at once


@triton.jit
def read_row(columns, num_columns, number, vocab_size):
    """Return (scale, top_k, top_p, min_p) of a row. The weight of a logit is 2 to the power of scale × (logit −
    largest); the scale is 0 for greedy rows. A top-k of the whole vocabulary is returned as 0, which is off."""
    temperature = tl.load(columns + _TEMPERATURE * num_columns + number).to(tl.float32, bitcast=True)
    scale = tl.where(temperature > 0.0, _LOG2_E / temperature, 0.0)
    top_k = tl.load(columns + _TOP_K * num_columns + number)
    top_p = tl.load(columns + _TOP_P * num_columns + number).to(tl.float32, bitcast=True)
    min_p = tl.load(columns + _MIN_P * num_columns + number).to(tl.float32, bitcast=True)
    return scale, tl.where(top_k < vocab_size, top_k, 0), top_p, min_p


@triton.jit
def load_logits(row, masks, ids, vocab_size, has_mask: tl.constexpr):
    """Return float32 logits, -inf beyond the vocabulary and for masked tokens."""
    is_token = ids < vocab_size
    logits = tl.load(row + ids, mask=is_token, other=float("-inf")).to(tl.float32)
    if has_mask:
        allowed = (tl.load(masks + ids // 8, mask=is_token, other=0).to(tl.int32) >> (ids % 8)) & 1
        logits = tl.where(allowed == 1, logits, float("-inf"))
    return logits


@triton.jit
def top_of(parts, number, num_rows, splits: tl.constexpr):
    """Return the largest logit of a row, 0 if every token is masked."""
    top = tl.max(tl.load(parts + (PEAK * num_rows + number) * splits + tl.arange(0, splits)))
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def above_top(top):
    """Return a number slightly above the largest logit."""
    return top + tl.maximum(tl.abs(top) * 1e-6, 1e-30)


@triton.jit
def sum_masses(parts, number, num_rows, top, scale, splits: tl.constexpr):
    """Return the sums of the weights of each split [S]."""
    at = parts + number * splits + tl.arange(0, splits)
    field = num_rows * splits
    return tl.load(at + MASS * field) * tl.exp2((tl.load(at + PEAK * field) - top) * scale)


@triton.jit
def uniform(columns, num_columns, number):
    """Return a row's random number in [0, 1): see `engine.sampling.random_numbers`."""
    low = tl.load(columns + _SEED_LOW * num_columns + number).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(columns + _SEED_HIGH * num_columns + number).to(tl.uint32, bitcast=True).to(tl.uint64)
    position = tl.load(columns + _POSITION * num_columns + number).to(tl.uint64)
    mixed = _mix(((high << 32) | low) + 0x9E3779B97F4A7C15)
    mixed = _mix(mixed + (position + 1) * 0x9E3779B97F4A7C15)
    return tl.minimum((mixed >> 11).to(tl.float32) * (2.0**-53), _BELOW_ONE)


@triton.jit
def _mix(state):
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def _flip(bits):
    """Turn the bits of a float32 into an integer of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _tile(
    row,
    masks,
    stored,
    counts,
    is_stored,
    first,
    vocab_size,
    has_filters: tl.constexpr,
    has_mask: tl.constexpr,
    splits: tl.constexpr,
    split_size: tl.constexpr,
    room: tl.constexpr,
):
    """Return [S, tile / S] logits: from number `first` of each split, those inside the bracket or all."""
    piece = tl.arange(0, splits)[:, None]
    place = first + tl.arange(0, _TILE // splits)[None, :]
    if has_filters:
        if is_stored:
            logits = tl.load(stored + piece * room + place, mask=place < counts[:, None], other=float("-inf"))
        else:
            logits = load_logits(row, masks, piece * split_size + place, vocab_size, has_mask)
    else:
        logits = load_logits(row, masks, piece * split_size + place, vocab_size, has_mask)
    return logits


@triton.jit
def _search(
    row,
    masks,
    stored,
    counts,
    is_stored,
    extent,
    vocab_size,
    low,
    high,
    top,
    scale,
    is_count,
    base,
    wanted,
    has_filters: tl.constexpr,
    has_mask: tl.constexpr,
    splits: tl.constexpr,
    split_size: tl.constexpr,
    room: tl.constexpr,
):
    """Return the largest threshold from `low` on and below `high` such that the logits from the threshold upwards have
    at least the wanted amount, of which `base` lies above `high`. Halves the bracket."""
    width: tl.constexpr = _TILE // splits
    at_low, at_high = _flip(low.to(tl.int32, bitcast=True)), _flip(high.to(tl.int32, bitcast=True))
    logits = _tile(
        row, masks, stored, counts, is_stored, 0, vocab_size, has_filters, has_mask, splits, split_size, room
    )
    amounts = tl.where(is_count, 1.0, tl.exp2((logits - top) * scale))
    while at_low + 1 < at_high:
        middle = (at_low >> 1) + (at_high >> 1) + (at_low & at_high & 1)
        pivot = _flip(middle).to(tl.float32, bitcast=True)
        found = tl.where(logits >= pivot, amounts, 0.0)
        for first in range(width, extent, width):
            others = _tile(
                row,
                masks,
                stored,
                counts,
                is_stored,
                first,
                vocab_size,
                has_filters,
                has_mask,
                splits,
                split_size,
                room,
            )
            found += tl.where(others >= pivot, tl.where(is_count, 1.0, tl.exp2((others - top) * scale)), 0.0)
        is_enough = base + tl.sum(found) >= wanted
        at_low = tl.where(is_enough, middle, at_low)
        at_high = tl.where(is_enough, at_high, middle)
    return _flip(at_low).to(tl.float32, bitcast=True)


@triton.jit
def _masses(
    row,
    masks,
    stored,
    counts,
    is_stored,
    extent,
    vocab_size,
    least,
    min_p,
    top,
    scale,
    has_filters: tl.constexpr,
    has_mask: tl.constexpr,
    splits: tl.constexpr,
    split_size: tl.constexpr,
    room: tl.constexpr,
):
    """Return the sums of the weights of each split [S] that reach both thresholds."""
    found = tl.zeros([splits, _TILE // splits], tl.float32)
    for first in range(0, extent, _TILE // splits):
        logits = _tile(
            row, masks, stored, counts, is_stored, first, vocab_size, has_filters, has_mask, splits, split_size, room
        )
        weights = tl.where(logits >= least, tl.exp2((logits - top) * scale), 0.0)
        found += tl.where(weights >= min_p, weights, 0.0)
    return tl.sum(found, 1)


@triton.jit(do_not_specialize=["num_columns", "num_passes"])
def finish(
    all_logits,
    all_masks,
    row_slots,
    columns,
    parts,
    states,
    all_stored,
    last_tokens,
    tokens,
    logits_stride,
    masks_stride,
    num_columns,
    vocab_size,
    num_passes,
    has_filters: tl.constexpr,
    has_slots: tl.constexpr,
    has_mask: tl.constexpr,
    splits: tl.constexpr,
    split_size: tl.constexpr,
    room: tl.constexpr,
):
    """Store the token and the flag of a row in `tokens` [2, K], and the token at the row's slot of `last_tokens`."""
    number, num_rows = tl.program_id(0), tl.num_programs(0)
    slot = tl.load(row_slots + number)
    if slot >= 0:
        scale, top_k, top_p, min_p = read_row(columns, num_columns, number, vocab_size)
        piece = tl.arange(0, splits)
        at = parts + number * splits + piece
        field = num_rows * splits
        peaks = tl.load(at + PEAK * field)
        best = tl.load(at + BEST * field).to(tl.int32)
        is_failed = tl.max(tl.load(at + BAD * field)) > 0.0
        token_id = tl.min(tl.where(peaks == tl.max(peaks), best, _NO_ID))
        if (scale > 0.0) & (is_failed == 0):
            row = all_logits + number.to(tl.int64) * logits_stride
            masks = all_masks + number.to(tl.int64) * masks_stride
            stored = all_stored + number * splits * room
            top = top_of(parts, number, num_rows, splits)
            kept = sum_masses(parts, number, num_rows, top, scale, splits)  # [S]
            least = top * 0.0 - float("inf")
            if (top_k > 0) | (top_p < 1.0) | (min_p > 0.0):
                counts, above = piece, kept * 0.0
                is_stored, extent = scale < 0.0, split_size
                high = above_top(top)
                if has_filters:
                    counts = tl.load(at + COUNT * field).to(tl.int32)
                    if (top_k > 0) | (top_p < 1.0):
                        is_stored = tl.max(counts) <= room
                        extent = tl.where(is_stored, tl.max(counts), split_size)
                        state = states + (num_passes * num_rows + number) * STATE_WIDTH
                        bracket_low, bracket_high = tl.load(state), tl.load(state + 1)
                        least, wanted = bracket_low, top_p * tl.sum(kept)
                        if top_k > 0:
                            least = _search(
                                row, masks, stored, counts, is_stored, extent, vocab_size, bracket_low, bracket_high,
                                top, scale, True, 0.0, top_k.to(tl.float32),
                                has_filters, has_mask, splits, split_size, room,
                            )  # fmt: skip
                            kept = _masses(
                                row, masks, stored, counts, is_stored, extent, vocab_size, least, 0.0, top, scale,
                                has_filters, has_mask, splits, split_size, room,
                            )  # fmt: skip
                            wanted = top_p * tl.sum(kept)
                        else:
                            high = bracket_high
                            if is_stored:
                                above = tl.load(at + ABOVE * field)
                        if top_p < 1.0:
                            least = _search(
                                row, masks, stored, counts, is_stored, extent, vocab_size, least, high,
                                top, scale, False, tl.sum(above), wanted,
                                has_filters, has_mask, splits, split_size, room,
                            )  # fmt: skip
                        if (top_k == 0) & is_stored:
                            above = tl.load(at + ABOVE_KEPT * field)
                kept = above + _masses(
                    row, masks, stored, counts, is_stored, extent, vocab_size, least, min_p, top, scale,
                    has_filters, has_mask, splits, split_size, room,
                )  # fmt: skip
            until = tl.cumsum(kept)
            target = uniform(columns, num_columns, number) * tl.max(until)
            # Rounding can leave the target at the end of all sums: the last split with any weight is taken then.
            last = tl.max(tl.where(kept > 0.0, piece, 0))
            chosen = tl.minimum(tl.min(tl.where((kept > 0.0) & (until > target), piece, splits)), last)
            before = tl.sum(tl.where(piece == chosen, until - kept, 0.0))
            ids = chosen * split_size + tl.arange(0, split_size)
            logits = load_logits(row, masks, ids, vocab_size, has_mask)
            weights = tl.where(logits >= least, tl.exp2((logits - top) * scale), 0.0)
            weights = tl.where(weights >= min_p, weights, 0.0)
            is_beyond = (before + tl.cumsum(weights) > target) & (weights > 0.0)
            first = tl.min(tl.where(is_beyond, ids, _NO_ID))
            final = tl.max(tl.where(weights > 0.0, ids, -1))
            drawn = tl.where(first < _NO_ID, first, final)
            token_id = tl.where(drawn >= 0, drawn, token_id)
        token_id = tl.where(is_failed, 0, token_id)
        tl.store(tokens + number, token_id)
        tl.store(tokens + num_rows + number, is_failed.to(tl.int32))
        if has_slots:
            tl.store(last_tokens + slot, token_id)
