"""One sequence held to its constraint: what may come next, what must, and whether what came still closes in time.

The matcher's state is a function of the completion's tokens and of nothing else, so preemption, batch mates and cached
prefixes leave it alone. Where only one text may follow, its tokens are settled at once, in the tokenizer's own way of
writing it: they come without being drawn, together or one by one.

Near the limit every token is tried before it is accepted: one after which no known close would fit is replaced by the
next token of the close in hand. Far from it, the close is looked up now and then, the more often the less room there
is. Only tokens that go on with a string or number that could end as well are taken without: closing needs no more after
them than before. Knows tokens and one limit; no logits, no batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.constraints.closing import closes, find_close
from engine.constraints.token_view import TokenView

if TYPE_CHECKING:
    from llguidance import LLMatcher

_LEAST_MARGIN = 8  # tokens to spare, below which every token is tried
_LEAST_SLACK = 3  # tokens to spare, below which those that only go on are tried too
_COST = 4  # of slack for a token that may change what closing needs; 1 for one that only goes on
_HOPELESS_PAUSE = 16  # tokens until a close is looked for again, when none was found that fits


class Hold:
    """`is_over`: nothing may follow. `is_failed`: the matcher gave up at one of its limits, and the sequence with it.
    `forced`: tokens that must come next and that the matcher has consumed already. `slack`: what may be spent on tokens
    before the close is looked at again. `can_go_on`: whether the text stands in a string or number that could end here
    and go on as well.

    `close` must close the text as it stands; None where none is known. `words` help to find others. `largest_step` is
    what one token may add to the tokens that closing needs.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        close: list[int] | None,
        view: TokenView,
        words: tuple[str, ...] = (),
        largest_step: int = 0,
    ) -> None:
        self.matcher = matcher
        self.is_failed = False
        self.is_over = False
        self.forced: list[int] = []
        self._view = view
        self._words = words
        self._close = close
        self._is_current = True  # whether `_close` closes the text as it stands now
        self._margin = max(largest_step, len(close or ())) + _LEAST_MARGIN
        self.slack = 0
        self.can_go_on = False
        self._is_tight = False

    @property
    def is_match(self) -> bool:
        """Whether the text as it stands is one that the constraint allows."""
        return not self.forced and bool(self.matcher.is_accepting())

    def review(self, remaining: int) -> None:
        """Before a token is drawn, when there is no slack and `remaining` are left: decide how closely to watch."""
        if not self._is_current:
            self._look_for_close()
        room = remaining - len(self._close) if self._close is not None else -1
        self._is_tight = 0 <= room <= self._margin
        if room < 0:
            self.slack = _HOPELESS_PAUSE * _COST
        else:
            self.slack = max(0, room - _LEAST_SLACK) if self._is_tight else room - self._margin + _COST - 1

    def take(self, token_id: int, remaining: int) -> int:
        """Accept `token_id`, which the mask allowed, as one of the `remaining` that are left; or another in its place,
        so that the text can be closed. Returns the one accepted. Not while something is forced."""
        if self.can_go_on and self.slack > 0 and self._view.is_plain[token_id]:
            self.slack -= 1
            self._is_current = False
            self._consume(token_id)
        elif self._is_tight:
            token_id = self._take_if_it_closes(token_id, remaining)
        else:
            self.slack -= _COST
            self._is_current = False
            self._consume(token_id)
            if self.slack > 0 and (forced := self.matcher.compute_ff_tokens()):
                self._settle(forced[: self.slack])
        self.is_over = self.matcher.is_stopped() and not (self.forced or self.is_failed)
        return token_id

    def spend(self, num_tokens: int) -> None:
        """The first `num_tokens` of those forced have come."""
        del self.forced[:num_tokens]
        self.is_over = self.matcher.is_stopped() and not (self.forced or self.is_failed)

    def _settle(self, forced: list[int]) -> None:
        """Consume what must follow."""
        num_taken = self.matcher.try_consume_tokens(forced)
        self.forced = forced[:num_taken]
        self.slack -= num_taken
        self.is_failed = self.is_failed or self.matcher.is_error()

    def _take_if_it_closes(self, token_id: int, remaining: int) -> int:
        """Of a text that could be closed with the `remaining` when it was looked at last."""
        if not self._is_current:
            self._look_for_close()
        known, self.slack = self._close, 0
        self._consume(token_id)
        if self.is_failed or self.matcher.is_stopped() or known is None or len(known) > remaining:
            self._is_current = False
            return token_id
        if known and token_id == known[0]:
            self._close = known[1:]
        elif not closes(self.matcher, known):
            self._look_for_close()
        if self._close is not None and len(self._close) < remaining:
            return token_id
        instead, *self._close = known or self._view.eos_token_ids[:1]
        self.is_failed = not (self.matcher.rollback(1) and self.matcher.consume_token(instead))
        return instead

    def _look_for_close(self) -> None:
        if self._close is None or not closes(self.matcher, self._close):
            self._close = find_close(self.matcher, self._view, self._words)
        self._is_current = True
        self._margin = max(self._margin, len(self._close or ()))

    def _consume(self, token_id: int) -> None:
        self.is_failed = not self.matcher.consume_token(token_id)
