"""A drafter for sequences of the fake runner. A fixed pattern decides how many of its draft tokens are right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.arrays import Ints
from engine.speculation.speculator import DraftRequest
from tests.fakes.runner import VOCAB_SIZE, draw


class Oracle:
    """Drafts whose first `pattern[n]` tokens are right in the n-th proposal of a sequence. All later tokens are
    wrong."""

    def __init__(self, pattern: Sequence[int] = (15, 0, 3, 1, 7)) -> None:
        self._pattern = pattern
        self._num_proposals: dict[int, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Ints]:
        return [self._guess(each) for each in requests]

    def _guess(self, requests: DraftRequest) -> Ints:
        number = self._num_proposals.get(requests.sequence_id, 0)
        self._num_proposals[requests.sequence_id] = number + 1
        num_accepted = self._pattern[number % len(self._pattern)]
        context = np.concatenate([requests.token_ids, np.zeros(requests.max_tokens, dtype=np.int32)])
        for place in range(len(requests.token_ids), len(context)):
            right = draw(context[:place])
            context[place] = right if place - len(requests.token_ids) < num_accepted else (right + 1) % VOCAB_SIZE
        return context[len(requests.token_ids) :][: requests.max_tokens - number % 2]
