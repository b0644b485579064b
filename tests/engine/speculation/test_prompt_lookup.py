"""What followed before is guessed to follow again."""

from __future__ import annotations

import numpy as np
import pytest

from engine.speculation.pace import FIRST, LEAST, MOST, RESTS, Pace
from engine.speculation.prompt_lookup import find_continuation


def found(token_ids: list[int], most: int = 4) -> list[int]:
    return find_continuation(np.array(token_ids, dtype=np.int32), most).tolist()


@pytest.mark.parametrize("token_ids", [[], [1], [1, 2], [1, 2, 3], [1, 2, 1], [2, 1, 3, 1]])
def test_an_end_that_was_never_there_before_says_nothing(token_ids: list[int]) -> None:
    assert found(token_ids) == []


def test_what_followed_the_same_tokens_is_guessed() -> None:
    assert found([5, 6, 7, 8, 9, 1, 2, 5, 6]) == [7, 8, 9, 1]
    assert found([5, 6, 7, 8, 9, 1, 2, 5, 6], most=1) == [7]


def test_the_longest_match_wins_and_the_latest_of_equals() -> None:
    assert found([1, 5, 6, 70, 2, 5, 6, 80, 3, 1, 5, 6]) == [70, 2, 5, 6]
    assert found([5, 6, 70, 9, 5, 6, 80, 9, 3, 5, 6], most=2) == [80, 9]


def test_a_match_that_runs_into_the_end_is_taken_for_a_loop() -> None:
    assert found([9, 1, 2, 3, 1, 2, 3, 1, 2], most=7) == [3, 1, 2, 3, 1, 2, 3]
    assert found([4, 4, 4], most=5) == [4] * 5


def test_guesses_grow_while_they_stand_shrink_when_they_fall_and_rest_when_they_fail() -> None:
    pace = Pace(2)
    sizes = []
    for _ in range(4):
        sizes.append(pace.next_size(0, sequence_id=7))
        pace.learn(0, sizes[-1], sizes[-1])
    assert sizes == [FIRST, 2 * FIRST, MOST, MOST]
    pace.learn(0, MOST, 3)
    assert pace.next_size(0, 7) == 4
    rests = []
    for _ in range(9):
        pace.learn(0, 4, 0)
        rests.append(0)
        while not pace.next_size(0, 7):
            rests[-1] += 1
    assert rests == [1, 3, 7, 15, 31, 63, 63, 63, 63]
    assert rests[-1] < RESTS
    assert pace.next_size(0, 7) == LEAST
    assert pace.next_size(0, sequence_id=8) == FIRST  # another sequence has the slot now
    assert pace.next_size(1, 7) == FIRST
