"""The state of one constrained sequence: which tokens its grammar accepts next.

The state is a function of the completion's tokens alone, so preemption, other rows of the batch and cached prefixes do
not affect it. A token is sampled first and then offered to the matcher; a rejected token is sampled again under a mask.
Where the grammar allows only one text, the tokens of that text are the jump-forward tokens: the matcher has consumed
them, and they are written without sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.structured.json_closing import CLOSING_WINDOW, JsonCloser
from engine.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

REJECTED = -1

_MAX_JUMP_FORWARD = 4096  # tokens found at once; a grammar may force endless text


class GrammarMatcher:
    """`jump_forward`: tokens that must come next; if empty, the next token is sampled. `is_complete`: no token may
    follow. `is_failed`: llguidance reached one of its limits; the sequence cannot continue."""

    __slots__ = ("_closer", "_eos_token_ids", "_matcher", "is_complete", "is_failed", "jump_forward")

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, *, closes_json: bool) -> None:
        """`matcher` has consumed no token. `closes_json`: the text is one JSON value, to be closed at the limit."""
        self._matcher = matcher
        self._eos_token_ids = vocabulary.eos_token_ids
        self._closer = JsonCloser(matcher, vocabulary) if closes_json else None
        self.jump_forward: list[int] = []
        self.is_failed = False
        self.is_complete = False
        self._find_jump_forward()

    @property
    def is_match(self) -> bool:
        """True if the text so far matches the whole grammar."""
        return not self.jump_forward and bool(self._matcher.is_accepting())

    def accept(self, token_id: int, remaining: int) -> int:
        """Accept the sampled token, the first of at most `remaining` more. Only if `jump_forward` is empty.

        Returns the token accepted: `token_id`, or another one where the text must be closed before the limit; REJECTED
        if the grammar does not allow `token_id`.
        """
        if self._closer is not None and remaining <= CLOSING_WINDOW:
            closing = self._closer.closing_due(token_id, remaining)
            if closing:
                self._consume(closing)
                self.jump_forward = closing[1:]
                self._update()
                return closing[0]
        if token_id in self._eos_token_ids and not self._matcher.is_accepting():
            return REJECTED
        if not self._consume([token_id]):
            self.is_failed = self._matcher.is_error()
            return token_id if self.is_failed else REJECTED
        self._find_jump_forward()
        return token_id

    def advance(self, num_tokens: int) -> None:
        """Note that the first `num_tokens` jump-forward tokens are written."""
        del self.jump_forward[:num_tokens]
        if not self.jump_forward:
            self._find_jump_forward()

    def fill_mask(self, address: int, num_bytes: int) -> None:
        """Write the mask of allowed tokens, one bit per token id and lowest bit first, to the memory at `address`."""
        self._matcher.unsafe_compute_mask_ptr(address, num_bytes)
        self.is_failed = self.is_failed or self._matcher.is_error()

    def _consume(self, token_ids: list[int]) -> int:
        num_consumed: int = self._matcher.try_consume_tokens(token_ids)
        if self._closer is not None:
            self._closer.push(token_ids[:num_consumed])
        return num_consumed

    def _find_jump_forward(self) -> None:
        forced = self._matcher.compute_ff_tokens()
        if forced:
            self.jump_forward = forced[: self._consume(forced[:_MAX_JUMP_FORWARD])]
        self._update()

    def _update(self) -> None:
        if self._matcher.is_stopped():  # also after an error
            self.is_failed = self.is_failed or self._matcher.is_error()
            self.is_complete = not self.jump_forward and not self.is_failed
