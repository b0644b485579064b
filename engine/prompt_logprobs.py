"""Log-probabilities of prompt tokens: which logits a step needs for them, and what its output says."""

from __future__ import annotations

import numpy as np

from engine.arrays import Ints, Longs
from engine.inputs import PromptLogprobRows, StepInputs, StepOutput
from engine.report import PromptLogprobs
from engine.scheduling.sequence import SlotTable
from engine.scheduling.step_budget import ScheduledStep


def select_rows(
    step: ScheduledStep, query_starts: Ints, sampled: Longs, table: SlotTable
) -> tuple[Longs, PromptLogprobRows | None]:
    """Return the indices [L] among the step's T tokens whose logits are needed, and how they are used.

    `sampled` [K] are the indices needed for sampling. Returns those and None if no prompt token is wanted.
    """
    rows, token_ids, sequences, num_tops = [], [], [], 0
    for index, slot in enumerate(step.slots.tolist()):
        num_reported = table.num_prompt_logprobs.get(slot)
        if num_reported is None:
            continue
        start = int(table.num_computed[slot])
        first = max(start, num_reported - 1)  # the logits of a token are computed at the position before it
        last = min(start + int(step.num_tokens[index]), int(table.num_prompt[slot]) - 1)
        if first < last:
            rows.append(int(query_starts[index]) + np.arange(first - start, last - start))
            token_ids.append(table.token_ids[slot, first + 1 : last + 1].copy())
            sequences.append((slot, int(table.sequence_id[slot]), last - first))
            num_tops = max(num_tops, int(table.sampling.num_logprobs[slot]))
    if not rows:
        return sampled, None
    wanted = np.concatenate(rows)
    needed = np.sort(np.concatenate([sampled, wanted]))  # [L]
    indices = np.searchsorted(needed, sampled), np.searchsorted(needed, wanted)
    return needed, PromptLogprobRows(*indices, np.concatenate(token_ids), num_tops, tuple(sequences))


def take_prompt_logprobs(inputs: StepInputs, output: StepOutput, table: SlotTable) -> tuple[PromptLogprobs, ...]:
    """Return the prompt log-probabilities that a step computed, and count them in `table`."""
    wanted, found = inputs.prompt_logprobs, output.prompt_logprobs
    if wanted is None:
        return ()
    assert found is not None, "a runner computes the log-probabilities that its inputs ask for"
    reports, first = [], 0
    for slot, sequence_id, count in wanted.sequences:
        part = slice(first, first + count)
        reports.append(PromptLogprobs(sequence_id, found.logprobs[part], found.top_ids[part], found.top_logprobs[part]))
        first += count
        table.num_prompt_logprobs[slot] += count
        if table.num_prompt_logprobs[slot] == table.num_prompt[slot]:
            del table.num_prompt_logprobs[slot]
    return tuple(reports)
