"""The constrained rows of one step: token masks for the sampler, and acceptance of the sampled tokens."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from engine.structured.grammar_matcher import REJECTED, GrammarMatcher

logger = logging.getLogger(__name__)

Masks = NDArray[np.uint8]

_NO_MASKS: Masks = np.empty((0, 0), dtype=np.uint8)


class ConstrainedRows:
    """The C constrained rows among the K rows that sample in one step. See `engine.inputs.ConstrainedRows`.

    Rows with jump-forward tokens take the next of these. All others sample without a mask first, unless their sampling
    filters depend on the mask, and sample again under a mask if the matcher rejects the token.
    """

    def __init__(self, rows: list[tuple[int, GrammarMatcher]], remaining: NDArray[np.int32], num_tokens: int) -> None:
        """`rows`: indices among the K rows, and their matchers. `remaining` [K]: tokens left before the limit.
        `num_tokens`: bits of a mask."""
        self.has_jump_forward = False  # after `accept`: a matcher has jump-forward tokens
        self.has_completed = False  # after `accept`: the text of a row is complete
        self._jumping = [pair for pair in rows if pair[1].jump_forward]
        self._sampling = [pair for pair in rows if not pair[1].jump_forward]
        self._remaining: list[int] = remaining.tolist()
        self._mask_bytes = -(-num_tokens // 32) * 4
        self._prefetch: Future[Masks] | None = None
        self._masks: Masks | None = None  # [rows that sample, bytes], if prefetched
        self._rejected: list[int] = []  # indices into `_sampling`

    @property
    def num_sampling(self) -> int:
        return len(self._sampling)

    def prefetch_masks(self, executor: ThreadPoolExecutor) -> None:
        """Compute the masks of all rows in another thread, during the forward pass."""
        self._prefetch = executor.submit(self._compute_masks, range(len(self._sampling)))

    def initial_masks(self, is_filtered: NDArray[np.bool_]) -> tuple[list[int], Masks]:
        """Return the R rows that must sample under a mask at once, and their masks [R, bytes]. `is_filtered` [K]: rows
        whose sampling depends on the probabilities of other tokens."""
        if self._prefetch is not None and not self._prefetch.cancel():
            self._masks = self._prefetch.result()
        if not np.count_nonzero(is_filtered):
            return [], _NO_MASKS
        filtered: list[bool] = is_filtered.tolist()
        indices = [index for index, (row, _) in enumerate(self._sampling) if filtered[row]]
        return [self._sampling[index][0] for index in indices], self._masks_of(indices)

    def accept(self, token_ids: NDArray[np.int32], is_failed: NDArray[np.bool_]) -> list[int]:
        """Offer the sampled tokens [K] to the matchers. Writes jump-forward and closing tokens to `token_ids`, and
        marks rows whose matcher failed in `is_failed` [K]. Returns the rows that must sample again."""
        for row, matcher in self._jumping:
            token_ids[row] = matcher.jump_forward[0]
            matcher.advance(1)
            self._note(matcher)
        self._offer(range(len(self._sampling)), token_ids, is_failed)
        return [self._sampling[index][0] for index in self._rejected]

    def rejected_masks(self) -> Masks:
        """Return the masks [R, bytes] of the rows that must sample again."""
        return self._masks_of(self._rejected)

    def accept_resampled(self, token_ids: NDArray[np.int32], is_failed: NDArray[np.bool_]) -> None:
        """Offer the tokens sampled under `rejected_masks`. A matcher that rejects one of these is at its limits."""
        self._offer(self._rejected, token_ids, is_failed)
        for index in self._rejected:
            row, matcher = self._sampling[index]
            matcher.is_failed = is_failed[row] = True

    def _offer(self, indices: Iterable[int], token_ids: NDArray[np.int32], is_failed: NDArray[np.bool_]) -> None:
        sampled: list[int] = token_ids.tolist()
        rejected = []
        for index in indices:
            row, matcher = self._sampling[index]
            token_id = sampled[row]
            if matcher.is_failed or is_failed[row]:
                is_failed[row] = True
                continue
            try:
                accepted = matcher.accept(token_id, self._remaining[row])
            except Exception as error:
                _fail(matcher, error)
            else:
                if accepted == REJECTED:
                    rejected.append(index)
                elif accepted != token_id:
                    token_ids[row] = accepted
            if matcher.is_failed:
                is_failed[row] = True
            else:
                self._note(matcher)
        self._rejected = rejected

    def _note(self, matcher: GrammarMatcher) -> None:
        if matcher.jump_forward:
            self.has_jump_forward = True
        if matcher.is_complete:
            self.has_completed = True

    def _masks_of(self, indices: list[int]) -> Masks:
        return self._masks[indices] if self._masks is not None else self._compute_masks(indices)

    def _compute_masks(self, indices: Iterable[int]) -> Masks:
        matchers = [self._sampling[index][1] for index in indices]
        masks = np.empty((len(matchers), self._mask_bytes), dtype=np.uint8)
        address: int = masks.__array_interface__["data"][0]
        for position, matcher in enumerate(matchers):
            try:
                matcher.fill_mask(address + position * self._mask_bytes, self._mask_bytes)
                matcher.is_failed = matcher.is_failed or not np.count_nonzero(masks[position])
            except Exception as error:
                _fail(matcher, error)
            if matcher.is_failed:
                masks[position] = 255  # the row is reported as failed; its token does not matter
        return masks


def _fail(matcher: GrammarMatcher, error: Exception) -> None:
    logger.error("grammar matcher failed: %s", type(error).__name__)
    matcher.is_failed = True
