"""Prompt lookup proposes the tokens that followed before; draft lengths adapt to their success."""

from __future__ import annotations

import numpy as np
import pytest

from engine.speculation.draft_length import INITIAL, MAX, MAX_PAUSE, MIN, DraftLength
from engine.speculation.prompt_lookup import MAX_INITIAL_TOKENS, PromptLookup
from engine.speculation.speculator import DraftRequest

RUN = [1, 2, 3, 4]
LONG_RUN = [11, 12, 13, 14, *RUN]


def found(token_ids: list[int], most: int = 4) -> list[int]:
    """Return the proposal for all tokens at once; check that incremental requests give the same."""
    whole = np.array(token_ids, dtype=np.int32)
    (at_once,) = PromptLookup().propose([DraftRequest(1, whole, most)])
    growing = PromptLookup()
    for length in range(1, len(whole), 3):
        growing.propose([DraftRequest(1, whole[:length], most)])
    (grown,) = growing.propose([DraftRequest(1, whole, most)])
    assert grown.tolist() == at_once.tolist()
    return at_once.tolist()


@pytest.mark.parametrize("token_ids", [[], [1], RUN, [*RUN, 5, *RUN[:3]], [*RUN, 5, *RUN, 6], [9, *RUN[1:], 5, *RUN]])
def test_new_ngram_proposes_nothing(token_ids: list[int]) -> None:
    assert found(token_ids) == []


def test_tokens_that_followed_the_same_ngram_are_proposed() -> None:
    assert found([*RUN, 8, 9, 10, 1, *RUN]) == [8, 9, 10, 1]
    assert found([*RUN, 8, 9, 10, 1, *RUN], most=1) == [8]


def test_longest_then_latest_match_is_preferred() -> None:
    assert found([*LONG_RUN, 70, 2, 5, *RUN, 80, 3, *LONG_RUN], most=3) == [70, 2, 5]
    assert found([*RUN, 70, 9, *RUN, 80, 9, 3, *RUN], most=2) == [80, 9]


def test_match_that_reaches_the_end_is_repeated() -> None:
    assert found([9, 1, 2, 3, 1, 2, 3, 1, 2], most=7) == [3, 1, 2, 3, 1, 2, 3]
    assert found([4, 4, 4, 4, 4], most=5) == [4] * 5


def test_indexes_are_per_sequence_and_bounded() -> None:
    lookup, text = PromptLookup(), np.array([*RUN, 5, *RUN], dtype=np.int32)
    for number in range(200):
        assert lookup.propose([DraftRequest(number, text + number, 1)])[0].tolist() == [5 + number]
    assert lookup.propose([DraftRequest(0, text, 1)])[0].tolist() == [5]  # read anew


def test_only_the_end_of_a_very_long_text_is_indexed() -> None:
    text = np.arange(MAX_INITIAL_TOKENS + 50, dtype=np.int32)
    for place, wanted in [(5, []), (60, [64])]:
        whole = np.concatenate([text, text[place : place + 4]])
        assert PromptLookup().propose([DraftRequest(1, whole, 1)])[0].tolist() == wanted


def test_draft_length_grows_when_accepted_shrinks_when_rejected_and_pauses_after_failures() -> None:
    length = DraftLength(2)
    lengths = []
    for _ in range(4):
        lengths.append(length.next(0, sequence_id=7))
        length.learn(0, lengths[-1], lengths[-1])
    assert lengths == [INITIAL, 2 * INITIAL, MAX, MAX]
    length.learn(0, MAX, 3)
    assert length.next(0, 7) == 4
    pauses = []
    for _ in range(9):
        length.learn(0, 4, 0)
        pauses.append(0)
        while not length.next(0, 7):
            pauses[-1] += 1
    assert pauses == [1, 3, 7, 15, 31, 63, 63, 63, 63]
    assert pauses[-1] < MAX_PAUSE
    assert length.next(0, 7) == MIN
    assert length.next(0, sequence_id=8) == INITIAL, "another sequence has the slot"
    assert length.next(1, 7) == INITIAL
