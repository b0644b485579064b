"""Build the inputs of a step from the slot table. Costs a handful of NumPy calls whatever the batch size."""

from __future__ import annotations

import numpy as np
import torch

from engine.arrays import Ints, Longs, ceil_div, segment_offsets
from engine.inputs import ConstraintSource, ImageRows, LogitBias, SamplingInputs, StepInputs, TokenHistory
from engine.prompt_logprobs import select_rows
from engine.scheduling.image_positions import positions_after
from engine.scheduling.sequence import SlotTable
from engine.scheduling.step_budget import ScheduledStep


def build_inputs(step: ScheduledStep, table: SlotTable, constraints: ConstraintSource | None = None) -> StepInputs:
    """Return the inputs of `step`, in the order of its rows."""
    slots, num_tokens = step.slots, step.num_tokens
    starts = table.num_computed[slots]  # int32 [R]
    context_lens = starts + num_tokens
    query_starts = np.zeros(len(slots) + 1, dtype=np.int32)
    np.cumsum(num_tokens, out=query_starts[1:])
    if query_starts[-1] == len(slots):  # one token a row: a decode step
        token_slots, positions = slots, starts.astype(np.int64)
        num_decode_rows = len(slots)
    else:
        token_slots = np.repeat(slots, num_tokens)  # [T]
        positions = np.arange(query_starts[-1]) + np.repeat(starts - query_starts[:-1], num_tokens)  # int64 [T]
        num_decode_rows = int(np.argmax(num_tokens > 1))
    block_size = table.block_size
    block_ids = table.block_table[token_slots, positions // block_size]  # int32 [T]
    slot_mapping = block_ids.astype(np.int64) * block_size + positions % block_size
    prompt_logprobs = None
    if step.num_drafts is None:
        sampled = np.flatnonzero(context_lens == table.length[slots])  # [K], rows whose last known token is computed
        logit_rows = query_starts[sampled + 1].astype(np.int64) - 1
        sampling = _sampling(slots[sampled], table.length[slots[sampled]], table, constraints)
        if table.num_prompt_logprobs:
            logit_rows, prompt_logprobs = select_rows(step, query_starts, logit_rows, table)
    else:  # every row decodes and samples at each of its tokens
        logit_rows = np.arange(len(positions))
        sampling = _sampling(token_slots, (positions + 1).astype(np.int32), table, constraints)
    return StepInputs(
        token_ids=torch.from_numpy(table.token_ids[token_slots, positions].astype(np.int64)),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(slot_mapping),
        logit_rows=torch.from_numpy(logit_rows),
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=_block_tables(slots, context_lens, table),
        sequence_ids=table.sequence_id[slots],
        num_decode_rows=num_decode_rows,
        sampling=sampling,
        adapters=_adapters(slots, table) if table.has_adapters else None,
        prompt_logprobs=prompt_logprobs,
        images=_images(slots, starts, query_starts, table) if table.images else None,
        axis_positions=_axis_positions(slots, query_starts, positions, table) if table.axis_positions else None,
        slots=slots,
        block_updates=_block_updates(slots, table) if table.is_mirrored else None,
    )


def _block_tables(slots: Ints, context_lens: Ints, table: SlotTable) -> Ints:
    """Return the used part of the block tables [R, max blocks]; no blocks if the device has the tables."""
    num_blocks = 0 if table.is_mirrored else ceil_div(int(context_lens.max()), table.block_size)
    return table.block_table[:, :num_blocks][slots]


def _block_updates(slots: Ints, table: SlotTable) -> tuple[Longs, Ints]:
    """Return the entries of the rows' block tables that the device does not have yet, and count them as sent."""
    num_blocks, num_mirrored = table.num_blocks[slots], table.num_mirrored[slots]
    is_stale = num_mirrored < num_blocks
    stale, counts = slots[is_stale], (num_blocks - num_mirrored)[is_stale]
    rows = np.repeat(stale, counts)
    indices = table.num_mirrored[rows] + segment_offsets(counts)
    table.num_mirrored[stale] = num_blocks[is_stale]
    return rows.astype(np.int64) * table.block_table.shape[1] + indices, table.block_table[rows, indices]


def _images(slots: Ints, starts: Ints, query_starts: Ints, table: SlotTable) -> ImageRows | None:
    """Return the tokens of images in the step; `starts` [R] is the position of each row's first token."""
    rows, embeddings, mutual = [], [], []
    for row, (slot, start) in enumerate(zip(slots.tolist(), starts.tolist(), strict=True)):
        offset, num_tokens = int(query_starts[row]), int(query_starts[row + 1] - query_starts[row])
        for image in table.images.get(slot, ()):
            first, last = max(image.start, start), min(image.end, start + num_tokens)
            if first < last:
                rows.append(np.arange(first, last) - start + offset)
                embeddings.append(image.embeddings[first - image.start : last - image.start])
                if image.is_mutual:
                    mutual.append((first - start + offset, last - start + offset))
    if not rows:
        return None
    return ImageRows(np.concatenate(rows), np.concatenate(embeddings), np.array(mutual, np.int32) if mutual else None)


def _axis_positions(slots: Ints, query_starts: Ints, positions: Longs, table: SlotTable) -> torch.Tensor | None:
    """Return the positions [3, T] of the step's tokens on each axis, or None if no row has positions of its own."""
    rows = [row for row, slot in enumerate(slots.tolist()) if slot in table.axis_positions]
    if not rows:
        return None
    found = np.tile(positions, (3, 1))
    for row in rows:
        span = slice(query_starts[row], query_starts[row + 1])
        found[:, span] = positions_after(table.axis_positions[int(slots[row])], positions[span])
    return torch.from_numpy(found)


def _adapters(slots: Ints, table: SlotTable) -> Ints | None:
    handles = table.adapter[slots]
    return handles if handles.any() else None


def _sampling(slots: Ints, lengths: Ints, table: SlotTable, constraints: ConstraintSource | None) -> SamplingInputs:
    """Return the sampling parameters of the K rows in `slots`, each of which samples token number `lengths` [K]."""
    constrained = None
    if constraints is not None:
        constrained = constraints.begin(table.sequence_id[slots], table.max_total_len[slots] - lengths)
    histories = tuple(
        TokenHistory(
            row=int(row),
            token_ids=table.token_ids[slots[row], : lengths[row]],
            num_prompt=int(table.num_prompt[slots[row]]),
        )
        for row in np.flatnonzero(table.needs_history[slots])
    )
    return SamplingInputs(
        **table.sampling.select(slots),
        positions=lengths.astype(np.int64),
        histories=histories,
        biases=_biases(slots, lengths, table) if table.logit_biases or table.min_lengths else (),
        constrained=constrained,
    )


def _biases(slots: Ints, lengths: Ints, table: SlotTable) -> tuple[LogitBias, ...]:
    """Return the biases of the K rows in `slots`: requested ones, and those that enforce min_tokens."""
    found = []
    for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
        bias, min_length = table.logit_biases.get(slot), table.min_lengths.get(slot)
        if bias is not None:
            found.append(LogitBias(row, *bias))
        if min_length is not None and length < min_length[0]:
            ends = min_length[1]
            found.append(LogitBias(row, ends, np.full(len(ends), -np.inf, np.float32)))
    return tuple(found)
