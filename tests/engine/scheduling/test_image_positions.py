"""Positions of prompts with images on three axes."""

from __future__ import annotations

import numpy as np

from engine.scheduling.image_positions import axis_positions, positions_after
from engine.scheduling.sequence import PromptImage


def image(start: int, rows: int, columns: int) -> PromptImage:
    return PromptImage(start, b"", np.zeros((rows * columns, 1), np.float32), (rows, columns))


def test_rows_and_columns_count_from_the_first_token_of_an_image() -> None:
    found = axis_positions([image(2, 2, 3)], 10)
    assert found.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]


def test_completion_continues_after_the_largest_position() -> None:
    ends_with_image = axis_positions([image(0, 1, 1), image(2, 4, 1)], 6)
    assert positions_after(ends_with_image, np.array([1, 5, 6, 7])).tolist() == [
        [1, 2, 6, 7],
        [1, 5, 6, 7],
        [1, 2, 6, 7],
    ]
