"""The step budget grants every row its tokens if they fit, otherwise it divides them."""

from __future__ import annotations

import numpy as np
import pytest

from engine.scheduling.sequence import PromptImage, SlotTable
from engine.scheduling.step_budget import ScheduledStep, StepBudget


def table_of(wanted: list[int], tenants: list[int]) -> SlotTable:
    """Return a table of sequences with `wanted` known tokens beyond the computed ones."""
    table = SlotTable(len(wanted), 64, 16)
    table.num_computed[:] = 3
    table.length[:] = np.array(wanted) + 3
    table.tenant[:] = tenants
    return table


def share(table: SlotTable, running: list[int], budget: int) -> ScheduledStep:
    return StepBudget(table, budget, max_prompt_logprob_tokens=512).divide(np.array(running, dtype=np.int32))


@pytest.mark.parametrize("budget", [17, 18, 100])
def test_rows_get_all_tokens_if_they_fit_and_decode_rows_come_first(budget: int) -> None:
    step = share(table_of([4, 1, 5, 1, 1, 5], [0, 1, 2, 0, 1, 2]), [5, 4, 0, 1, 3, 2], budget)
    assert step.slots.tolist() == [4, 1, 3, 5, 0, 2]
    assert step.num_tokens.tolist() == [1, 1, 1, 5, 4, 5]
    assert step.slots.dtype == step.num_tokens.dtype == np.int32


def test_tokens_are_divided_between_tenants_if_they_do_not_fit() -> None:
    step = share(table_of([8, 1, 8, 8], [0, 1, 0, 2]), [0, 1, 2, 3], 17)
    assert dict(zip(step.slots.tolist(), step.num_tokens.tolist(), strict=True)) == {0: 8, 1: 1, 3: 8}


def test_more_rows_than_tokens_take_turns() -> None:
    table = table_of([1] * 6, [0] * 6)
    table.last_step[:] = [6, 5, 4, 3, 2, 1]
    assert share(table, [0, 1, 2, 3, 4, 5], 4).slots.tolist() == [5, 4, 3, 2]


def test_chunks_end_after_an_image_whose_tokens_see_each_other() -> None:
    table = table_of([30, 30, 1], [0, 1, 2])
    images = [PromptImage(5, b"", np.zeros((12, 1), np.float32), is_mutual=is_mutual) for is_mutual in (True, False)]
    table.images = {0: (images[0],), 1: (images[1],)}
    step = share(table, [0, 1, 2], 9)
    assert dict(zip(step.slots.tolist(), step.num_tokens.tolist(), strict=True)) == {0: 14, 1: 4, 2: 1}
    assert step.slots[0] == 2
