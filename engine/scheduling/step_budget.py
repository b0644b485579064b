"""Step budget: how the tokens of one step are divided among the running sequences.

Decode rows come first with one token each. Prefill chunks share the rest in equal parts between tenants. If there are
more rows than tokens, the rows that have waited longest go first. No row starves. A step exceeds the budget only to
finish images whose tokens attend to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.arrays import Ints
from engine.scheduling.sequence import SlotTable


@dataclass(frozen=True, eq=False)
class ScheduledStep:
    """R rows, those with one token first.

    A row samples if all of its known tokens have KV after the step. The last `num_drafts` tokens of a row are draft
    tokens: the row samples at each of them.
    """

    slots: Ints  # [R]
    num_tokens: Ints  # [R], at least 1 each
    num_drafts: Ints | None = None  # [R]; None if no row has draft tokens

    @property
    def num_rows(self) -> int:
        return len(self.slots)


class StepBudget:
    """Limits of one step: at most `max_step_tokens` tokens, of which `max_prompt_logprob_tokens` may need prompt
    log-probabilities."""

    def __init__(self, table: SlotTable, max_step_tokens: int, max_prompt_logprob_tokens: int) -> None:
        self._table = table
        self._max_step_tokens = max_step_tokens
        self._max_prompt_logprob_tokens = max_prompt_logprob_tokens

    def divide(self, running: Ints) -> ScheduledStep:
        """Return rows and tokens of the next step. `running` are slots in order of admission.

        At least one token is scheduled if any sequence runs.
        """
        step = self._divide(running)
        return with_whole_images(step, self._table) if self._table.images else step

    def _divide(self, running: Ints) -> ScheduledStep:
        table, budget = self._table, self._max_step_tokens
        remaining = table.length[running] - table.num_computed[running]
        is_decode = remaining == 1
        if table.num_prompt_logprobs:
            remaining = self._limit_prompt_logprobs(running, remaining)
        num_decode = int(np.count_nonzero(is_decode))
        if num_decode == len(running) <= budget:
            return ScheduledStep(running.copy(), remaining)
        if remaining.sum() <= budget:
            order = np.argsort(~is_decode, kind="stable")
            return ScheduledStep(running[order], remaining[order])
        prefill, wanted = running[~is_decode], remaining[~is_decode]
        least = max(1, budget // 8)  # for prefill, however many rows decode
        tenants = table.tenant[prefill]
        num_tenants = len(np.unique(tenants))
        if num_decode + (least if num_tenants else 0) > budget or budget - num_decode < num_tenants:
            return self._longest_waiting(running, remaining, least)
        granted = _divide_by_tenant(tenants, wanted, budget - num_decode)
        # A chunk of one token counts as a decode row in the runner, so it must come with those.
        order = np.argsort(granted != 1, kind="stable")
        order = order[granted[order] > 0]
        slots = np.concatenate([running[is_decode], prefill[order]])
        return ScheduledStep(slots, np.concatenate([remaining[is_decode], granted[order]]))

    def _limit_prompt_logprobs(self, running: Ints, remaining: Ints) -> Ints:
        """Limit rows that need prompt log-probabilities: the logits of all their tokens take memory."""
        wanting = self._table.num_prompt_logprobs
        is_limited = np.array([slot in wanting for slot in running.tolist()])
        limit = max(2, self._max_prompt_logprob_tokens // len(wanting))  # a chunk of one token would be a decode row
        return np.where(is_limited, np.minimum(remaining, limit), remaining).astype(np.int32)

    def _longest_waiting(self, running: Ints, remaining: Ints, chunk: int) -> ScheduledStep:
        """Choose the rows that have waited longest, with one token or a chunk each: there are more rows than tokens."""
        order = np.argsort(self._table.last_step[running], kind="stable")
        wanted = np.minimum(remaining, chunk)[order]
        granted = _first_come(wanted, self._max_step_tokens)
        rows = np.flatnonzero(granted > 0)
        rows = rows[np.argsort(granted[rows] != 1, kind="stable")]
        return ScheduledStep(running[order[rows]], granted[rows])


def with_whole_images(step: ScheduledStep, table: SlotTable) -> ScheduledStep:
    """Extend the chunks that end within an image whose tokens attend to each other to the end of the image."""
    ends = table.num_computed[step.slots] + step.num_tokens
    for row, slot in enumerate(step.slots.tolist()):
        for image in table.images.get(slot, ()):
            if image.is_mutual and image.start < ends[row] < image.end:
                ends[row] = image.end
    num_tokens = ends - table.num_computed[step.slots]
    order = np.argsort(num_tokens != 1, kind="stable")
    return ScheduledStep(step.slots[order], num_tokens[order])


def _first_come(wanted: Ints, budget: int) -> Ints:
    """Grant each row the tokens it wants, in order, until the budget is spent."""
    before = np.cumsum(wanted, dtype=np.int64) - wanted
    granted: Ints = np.clip(budget - before, 0, wanted).astype(np.int32)
    return granted


def _divide_by_tenant(tenants: Ints, wanted: Ints, budget: int) -> Ints:
    """Return tokens for each row: equal parts for tenants, in order of rows within a tenant.

    A tenant's unused part goes to the others. The budget has at least one token for each tenant.
    """
    distinct, tenant_of = np.unique(tenants, return_inverse=True)
    if len(distinct) == 1:
        return _first_come(wanted, budget)
    demand = np.bincount(tenant_of, weights=wanted).astype(np.int64)
    granted = np.zeros_like(wanted)
    num_left = len(distinct)
    for tenant in np.argsort(demand, kind="stable").tolist():
        part = min(int(demand[tenant]), budget // num_left)
        rows = tenant_of == tenant
        granted[rows] = _first_come(wanted[rows], part)
        budget -= part
        num_left -= 1
    return granted
