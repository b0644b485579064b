"""How the tokens of one step are shared out among the rows that run.

Decode rows come first with one token each, prefill chunks take the rest, in equal parts between tenants; if not even
that many tokens are to be had, whoever has waited longest for one goes first. So no one starves, and no step is over
budget. Knows which slots run, not why, and no blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.arrays import Ints
from engine.scheduling.sequence import SlotTable


@dataclass(frozen=True, eq=False)
class ScheduledStep:
    """R rows, those with one token first. A row samples iff its known tokens all have KV after the step. A row's
    last `num_drafts` tokens are guesses: it samples at each of them."""

    slots: Ints  # [R]
    num_tokens: Ints  # [R], at least 1 each
    num_drafts: Ints | None = None  # [R]; None: no row has guesses

    @property
    def num_rows(self) -> int:
        return len(self.slots)


class StepBudget:
    """At most `max_step_tokens` tokens, `max_prompt_logprob_tokens` of them for prompt log-probabilities."""

    def __init__(self, table: SlotTable, max_step_tokens: int, max_prompt_logprob_tokens: int) -> None:
        self._table = table
        self._max_step_tokens = max_step_tokens
        self._max_scored_tokens = max_prompt_logprob_tokens

    def share(self, running: Ints) -> ScheduledStep:
        """Rows and tokens of the step, of `running` slots in order of admission: at most the budget, at least one token
        if anything runs."""
        table, budget = self._table, self._max_step_tokens
        remaining = table.length[running] - table.num_computed[running]
        is_decode = remaining == 1
        if table.num_prompt_logprobs:
            remaining = self._held_back(running, remaining)
        num_decode = int(np.count_nonzero(is_decode))
        if num_decode == len(running) <= budget:
            return ScheduledStep(running.copy(), remaining)
        if remaining.sum() <= budget:  # each gets what it wants, whoever it is of
            order = np.argsort(~is_decode, kind="stable")
            return ScheduledStep(running[order], remaining[order])
        prefill, wanted = running[~is_decode], remaining[~is_decode]
        least = max(1, budget // 8)  # what prefill gets however many rows decode
        tenants = table.tenant[prefill]
        num_tenants = len(np.unique(tenants))
        if num_decode + (least if num_tenants else 0) > budget or budget - num_decode < num_tenants:
            return self._take_turns(running, remaining, least)
        granted = _share(tenants, wanted, budget - num_decode)
        # A chunk of one token counts as a decode row to whoever runs the step, and so comes with those.
        order = np.argsort(granted != 1, kind="stable")
        order = order[granted[order] > 0]
        slots = np.concatenate([running[is_decode], prefill[order]])
        return ScheduledStep(slots, np.concatenate([remaining[is_decode], granted[order]]))

    def _held_back(self, running: Ints, remaining: Ints) -> Ints:
        """`remaining` of the running rows, less where every token's logits are wanted: those of a step take memory."""
        scored = self._table.num_prompt_logprobs
        is_scored = np.array([slot in scored for slot in running.tolist()])
        most = max(2, self._max_scored_tokens // len(scored))  # a chunk of one token would be a decode row
        return np.where(is_scored, np.minimum(remaining, most), remaining).astype(np.int32)

    def _take_turns(self, running: Ints, remaining: Ints, chunk: int) -> ScheduledStep:
        """More rows than tokens: those that have waited longest, with one token or a small chunk each."""
        order = np.argsort(self._table.last_step[running], kind="stable")
        wanted = np.minimum(remaining, chunk)[order]
        granted = _first_come(wanted, self._max_step_tokens)
        rows = np.flatnonzero(granted > 0)
        rows = rows[np.argsort(granted[rows] != 1, kind="stable")]
        return ScheduledStep(running[order[rows]], granted[rows])


def _first_come(wanted: Ints, budget: int) -> Ints:
    """Each what it wants, in order, until the budget is spent."""
    before = np.cumsum(wanted, dtype=np.int64) - wanted
    granted: Ints = np.clip(budget - before, 0, wanted).astype(np.int32)
    return granted


def _share(tenants: Ints, wanted: Ints, budget: int) -> Ints:
    """Tokens for each row: equal parts for the tenants, what one does not need going to the others; within a tenant
    in the order of the rows. The budget has at least one token for each tenant."""
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
