"""Logit biases and penalties in Triton: work in proportion to the tokens, not to the vocabulary.

Penalties take two launches over the tokens of a group of histories. The first counts each token in a table that is zero
before and after. The second takes each count out of the table and changes the logit; of several equal tokens, only the
first to arrive finds a count. With TRITON_INTERPRET=1 the kernels run on a CPU.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: K rows, V vocabulary, H rows with a history, G rows of one launch, N tokens of all histories, B biased logits.
"""

import torch
import triton
import triton.language as tl

from engine.sampling.history import Biases, Histories

_BLOCK = 512
_PROGRAMS = 16  # per history
_ROWS_AT_ONCE = 64  # limit of the rows of the count table, which has an entry for each token of the vocabulary
_SEEN = tl.constexpr(1 << 30)  # bit of the count of a token that occurs in prompt or completion


@triton.jit
def _add_biases(logits, places, values, logits_stride, num_values, vocab_size, block: tl.constexpr):
    index = tl.program_id(0) * block + tl.arange(0, block)
    rows = tl.load(places + index, mask=index < num_values, other=-1).to(tl.int64)
    ids = tl.load(places + num_values + index, mask=index < num_values, other=0)
    is_used = (rows >= 0) & (ids >= 0) & (ids < vocab_size)
    at = logits + rows * logits_stride + ids
    added = tl.load(values + index, mask=index < num_values, other=0.0)
    tl.store(at, tl.load(at, mask=is_used, other=0.0) + added, mask=is_used)


@triton.jit(do_not_specialize=["num_rows", "first_row"])
def _count(token_ids, spans, counts, num_rows, first_row, vocab_size, block: tl.constexpr):
    """Count the completion tokens of a history in its row of `counts` [G, V], and mark all tokens as seen."""
    number = first_row + tl.program_id(0)
    if tl.load(spans + number) >= 0:
        tokens = token_ids + tl.load(spans + num_rows + number)
        length, num_prompt = tl.load(spans + 2 * num_rows + number), tl.load(spans + 3 * num_rows + number)
        row = counts + tl.program_id(0).to(tl.int64) * vocab_size
        for first in range(tl.program_id(1) * block, length, tl.num_programs(1) * block):
            index = first + tl.arange(0, block)
            ids = tl.load(tokens + index, mask=index < length, other=-1)
            is_used = (ids >= 0) & (ids < vocab_size)
            tl.atomic_or(row + ids, _SEEN, mask=is_used, sem="relaxed")
            tl.atomic_add(row + ids, 1, mask=is_used & (index >= num_prompt), sem="relaxed")


@triton.jit(do_not_specialize=["num_rows", "first_row"])
def _penalize(
    logits, token_ids, spans, counts, num_rows, first_row, vocab_size, penalties, logits_stride, block: tl.constexpr
):
    """Change the logits of the tokens of a history, and set their counts to zero."""
    number = first_row + tl.program_id(0)
    logit_row = tl.load(spans + number)
    if logit_row >= 0:
        tokens = token_ids + tl.load(spans + num_rows + number)
        length = tl.load(spans + 2 * num_rows + number)
        repetition = tl.load(penalties + number)
        presence, frequency = tl.load(penalties + num_rows + number), tl.load(penalties + 2 * num_rows + number)
        row = counts + tl.program_id(0).to(tl.int64) * vocab_size
        out = logits + logit_row.to(tl.int64) * logits_stride
        for first in range(tl.program_id(1) * block, length, tl.num_programs(1) * block):
            index = first + tl.arange(0, block)
            ids = tl.load(tokens + index, mask=index < length, other=-1)
            is_used = (ids >= 0) & (ids < vocab_size)
            found = tl.atomic_and(row + ids, 0, mask=is_used, sem="relaxed")
            is_first = is_used & (found >= _SEEN)
            count = (found & (_SEEN - 1)).to(tl.float32)
            before = tl.load(out + ids, mask=is_first, other=0.0)
            after = tl.where(before > 0, before / repetition, before * repetition)
            after -= frequency * count + tl.where(count > 0, presence, 0.0)
            tl.store(out + ids, after, mask=is_first)


_counts: dict[torch.device, torch.Tensor] = {}


def adjust(logits: torch.Tensor, biases: list[Biases], histories: Histories | None) -> None:
    """Apply biases, then penalties to float32 logits [K, V] in place. Waits for nothing."""
    vocab_size = logits.shape[1]
    for places, values in biases:
        programs = triton.cdiv(len(values), _BLOCK)
        _add_biases[(programs,)](logits, places, values, logits.stride(0), len(values), vocab_size, block=_BLOCK)
    if histories is not None:
        token_ids, spans, penalties = histories
        num_rows, at_once = spans.shape[1], min(spans.shape[1], _ROWS_AT_ONCE)
        counts = _table(logits.device, at_once * vocab_size)
        for first in range(0, num_rows, at_once):
            grid = (min(at_once, num_rows - first), _PROGRAMS)
            group = (token_ids, spans, counts, num_rows, first, vocab_size)
            _count[grid](*group, block=_BLOCK)
            _penalize[grid](logits, *group, penalties, logits.stride(0), block=_BLOCK)


def _table(device: torch.device, size: int) -> torch.Tensor:
    """Return zeros, int32 [at least `size`], which the caller's launches leave as zeros."""
    if device not in _counts or len(_counts[device]) < size:
        _counts[device] = torch.zeros(size, dtype=torch.int32, device=device)
    return _counts[device]
