"""One sequence held to its constraint: what may come next, what must, and whether what came still closes in time.

The matcher's state is a function of the completion's tokens and of nothing else, so preemption, batch mates and cached
prefixes leave it alone. A token is drawn first and then offered; one that the constraint does not allow is refused, and
drawn again under a mask. Where only one text may follow, its tokens are settled at once, in the tokenizer's own way of
writing it: they come without being drawn, together or one by one.

While more tokens are left than any text of the constraint can need to be closed, nobody looks at closes. Then, and from
the start where no such number is known, the close is looked up now and then, the more often the less room there is; but
tokens that go on with a string or number that could end as well cost little: closing needs no more after them than
before. Near the limit every token is tried before it is accepted: one after which no known close would fit is replaced
by the next token of the close in hand.

Within a string that may be any text, tokens of plain characters are taken without asking: the matcher hears of them
when something else comes, or when anybody asks it. Knows tokens and one limit; no logits, no batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.structured.closing import Closing, closes, find_close
from engine.structured.token_view import Tail, TokenView

if TYPE_CHECKING:
    from llguidance import LLMatcher

REFUSED = -1

_SIGNS = (Tail.SIGN, Tail.COMMA)
_LEAST_MARGIN = 8  # tokens to spare, below which every token is tried
_LEAST_SLACK = 3  # tokens to spare, below which those that only go on are tried too
_COST = 4  # of slack for a token that may change what closing needs; 1 for one that only goes on
_NUM_REMEMBERED = 3  # closes that were found, to be tried before another is looked for
_MAX_CHOICES = 2_000  # in looking for a close; half as many after each time that none was found
_MOST_FRUITLESS = 5
_CHOICES_PER_TOKEN = 16  # a close that fits is no longer than that, spelled byte for byte
_HOPELESS_PAUSE = 16  # tokens until a close is looked for again, when none was found that fits; fewer near the limit


class Hold:
    """`is_over`: nothing may follow. `is_cut`: an end token was taken since there was no room for what the model would
    have said. `is_failed`: the matcher gave up at one of its limits, and the sequence with it.
    `forced`: tokens that must come next and that the matcher has consumed already. `slack`: what may be spent on tokens
    before the close is looked at again. `is_open`: whether it is known that more than one token may come next; where it
    is not, the draw has to be under a mask, which allows what is forced in the tokenizer's own way of writing it alone.
    `is_quick`: whether plain tokens are simply noted, by `note`. `ends_itself`: whether no end token is ever allowed.
    """

    __slots__ = (
        "_bound", "_close", "_closing", "_costs", "_goes_on", "_is_current", "_is_free", "_is_hopeless",
        "_is_in_string", "_is_tight", "_margin", "_matcher", "_num_fruitless", "_plain",
        "_remembered", "_tails", "_untold", "_view",
        "ends_itself", "forced", "is_cut", "is_failed", "is_open", "is_over", "is_quick", "note", "slack",
    )  # fmt: skip  # a step looks at every hold, and few are in a cache by then

    def __init__(self, matcher: LLMatcher, closing: Closing, view: TokenView) -> None:
        self._matcher = matcher
        self._untold: list[int] = []  # tokens taken that the matcher has not heard of
        self.note = self._untold.append
        self.ends_itself = closing.ends_itself
        self.is_quick = False
        self.is_failed = False
        self.is_over = False
        self.is_cut = False
        self.is_open = False
        self.forced: list[int] = []
        self.slack = 0
        self._view = view
        self._costs, self._plain, self._tails = view.costs, view.plain, view.tails
        self._closing = closing
        self._bound = closing.bound
        self._is_free = False  # whether the bound is far away
        self._close: list[int] | None = closing.first if closing.bound is None else None
        self._is_current = closing.bound is None  # whether `_close` closes the text as it stands now
        self._remembered: list[list[int]] = []
        self._margin = _LEAST_MARGIN + len(self._close or ())
        self._is_tight = False
        self._is_hopeless = False  # whether no close was known that fits, when it was looked for last
        self._num_fruitless = 0  # searches that have found no close, up to a few
        self._is_in_string: bool | None = None  # of any text; None: not known
        self._goes_on: bool | None = None  # whether the text stands in what can go on and end as well; None: not known

    @property
    def matcher(self) -> LLMatcher:
        """It knows the text as it stands."""
        if self._untold:
            if self._matcher.try_consume_tokens(self._untold) < len(self._untold):
                self.is_failed, self.is_quick = True, False
            self._untold.clear()
        return self._matcher

    @property
    def num_untold(self) -> int:
        """Tokens that the matcher has not heard of."""
        return len(self._untold)

    @property
    def is_match(self) -> bool:
        """Whether the text as it stands is one that the constraint allows."""
        return not self.forced and bool(self.matcher.is_accepting())

    @property
    def is_prepared(self) -> bool:
        """Whether a token may be drawn as things stand."""
        return bool(self.forced) or (self.is_open and self.slack > 0) or self.is_failed

    def review(self, remaining: int) -> None:
        """Before a token is drawn, when there is no slack and `remaining` are left: decide how closely to watch."""
        bound, self._bound = self._bound, None
        self._is_free = bound is not None and remaining - bound > _LEAST_MARGIN
        if bound is not None and self._is_free:
            self.slack = remaining - bound - _LEAST_MARGIN
            return
        if not self._is_current:
            self._look_for_close(remaining, is_in_string=bool(self._is_in_string))
        self._margin = max(self._margin, self._closing.largest_step + _LEAST_MARGIN)
        room = remaining - len(self._close) if self._close is not None else -1
        self._is_tight, self._is_hopeless = 0 <= room <= self._margin, room < 0
        if room < 0:
            self.slack = min(_HOPELESS_PAUSE * _COST, max(_COST, remaining // 2))
        else:
            self.slack = max(0, room - _LEAST_SLACK) if self._is_tight else room - self._margin + _COST - 1

    def prepare(self, remaining: int) -> None:
        """Before a token is drawn, of which `remaining` are left."""
        if self.slack <= 0:
            self.review(remaining)
        if self._is_tight:
            self._prepare_tight(remaining)
        elif not self.is_open:
            self._settle()

    def take(self, token_id: int, remaining: int) -> int:
        """Accept `token_id` as one of the `remaining` that are left; or another in its place, so that the text can be
        closed. Returns the one accepted, REFUSED if the constraint does not allow it. Not while something is forced."""
        is_plain = self._plain[token_id]
        if self.slack > 0 and is_plain and (self._is_in_string or self._enters_string(remaining)):
            self.note(token_id)
            self.slack -= 1
            self._is_current, self.is_open, self.is_quick = False, True, self.slack > 0
            return token_id
        self.is_quick = False
        cost = self._costs[token_id]
        if cost == 0 and self.slack > 0 and self._does_go_on():
            if not self._consumes(token_id):
                return token_id if self.is_failed else REFUSED
            self.slack -= 1
            self._is_current, self.is_open = False, True
            return token_id
        if not self._is_free:
            cost = _COST
        elif cost > self.slack:
            self.review(remaining)
            cost = _COST
        else:
            cost = cost or 1
        if self._is_tight:
            taken = self._take_if_it_closes(token_id, remaining)
            if taken == token_id and is_plain and self._is_in_string:
                return token_id
            token_id = taken
        elif self._consumes(token_id):
            self.slack -= cost
            self._is_current = False
        else:
            return token_id if self.is_failed else REFUSED
        if token_id != REFUSED:
            self._learn(token_id)
            if not self.is_open:
                if not self._is_tight:
                    self._settle()
                self.is_over = self.matcher.is_stopped() and not (self.forced or self.is_failed)
        return token_id

    def spend(self, num_tokens: int) -> None:
        """The first `num_tokens` of those forced have come."""
        del self.forced[:num_tokens]
        self.is_over = self.matcher.is_stopped() and not (self.forced or self.is_failed)

    def _learn(self, token_id: int) -> None:
        """What is known, or found out at little cost, of the place after `token_id`: where the text can go on and end,
        nothing is forced."""
        was_in_string, tail = self._is_in_string, self._tails[token_id]
        was_in_number = self._goes_on and was_in_string is False
        self._forget()
        if tail == Tail.QUOTE:
            self._is_in_string = not was_in_string and self._is_string_begun()
            self.is_open = self._is_in_string
            if self.is_open and not self._is_free:
                self.slack = 0  # what led there may have added to what closing needs, and the string will not
            return
        if tail >= Tail.BEHIND:
            if was_in_string:  # and is in none: a space may come, or what the colon or the comma calls for
                self._is_in_string = self._goes_on = False
                self.is_open = tail == Tail.NEXT
            return
        if tail != Tail.UNKNOWN and was_in_string is False:
            self._is_in_string = False
            self._goes_on = False if tail in _SIGNS and self._closing.probe else None
        if tail == Tail.WORD:
            self.is_open = self._does_go_on()
            if self.is_open and self._is_hopeless:
                self.slack = 0  # it may have come to a place where it can end
        elif tail == Tail.COMMA and was_in_number and self._closing.probe:
            self.is_open = True  # likewise

    def _forget(self) -> None:
        """What was known of the place where the text stood."""
        self._goes_on, self._is_in_string, self.is_open = None, None, False

    def _does_go_on(self) -> bool:
        """Letters, digits and spaces do not leave what goes on."""
        if self._goes_on is None:
            self._goes_on = self._view.can_go_on(self.matcher)
        return self._goes_on

    def _is_string_begun(self) -> bool:
        """Whether the text has come to a string that may be any."""
        probe = self._closing.probe
        return bool(probe) and self.matcher.validate_tokens(probe) == len(probe)

    def _enters_string(self, remaining: int) -> bool:
        """Whether the text has come to a string that may be any, and may go on with it for a while: what led there may
        have added to what closing needs, and the string will not."""
        if self._is_in_string is None:
            self._is_in_string = self._is_string_begun()
            if self._is_in_string and not self._is_free:
                self.review(remaining)
        return self._is_in_string and self.slack > 0

    def _settle(self) -> None:
        """Consume what must follow, as far as there is slack."""
        while self.slack > 0 and not self.is_failed:
            forced = self.matcher.compute_ff_tokens()
            if not forced:
                self.is_open, self.is_failed = True, self._matcher.is_error()
                return
            num_taken = self.matcher.try_consume_tokens(forced[: self.slack])
            self._goes_on = self._is_in_string = None
            self.forced += forced[:num_taken]
            self.slack -= num_taken
            self._is_current = False
            self.is_failed = self.matcher.is_error()
            if not num_taken:
                return

    def _prepare_tight(self, remaining: int) -> None:
        """Where no token but one may follow, or a string has to end now, there is nothing to draw."""
        close = self._close if self._is_current and self._close else []
        if self._is_in_string:
            forced = close[:1] if len(close) == remaining else []
        else:
            forced = [] if self.is_open else self.matcher.compute_ff_tokens()
            self.is_open = not forced
            self.is_failed = not forced and self._matcher.is_error()
        if forced and forced == close[: len(forced)]:
            self.is_failed = self.matcher.try_consume_tokens(forced) < len(forced)
            self.forced, self._close = forced, close[len(forced) :]
            self._forget()

    def _take_if_it_closes(self, token_id: int, remaining: int) -> int:
        """Of a text that could be closed with the `remaining` when it was looked at last."""
        if not self._is_current:
            self._look_for_close(remaining, is_in_string=bool(self._is_in_string))
        if not self._consumes(token_id):
            return token_id if self.is_failed else REFUSED
        known, self.slack = self._close, 0
        if self.matcher.is_stopped() or known is None or len(known) > remaining:
            self._is_current = False
            return token_id
        if known and token_id == known[0]:
            self._close = known[1:]
        elif not closes(self.matcher, known, self._view.eos_token_ids):
            self._look_for_close(remaining)
        if self._close is not None and len(self._close) < remaining:
            return token_id
        instead, *self._close = known or self._view.eos_token_ids[:1]
        self.is_cut = not known
        self.is_failed = not (self.matcher.rollback(1) and self.matcher.consume_token(instead))
        return instead

    def _look_for_close(self, remaining: int, *, is_in_string: bool = False) -> None:
        """One that fits into `remaining` tokens, if there is one; what closed the text before may have become longer
        than it need be. `is_in_string`: whether the text is known to stand in one that may be any."""
        matcher, end_ids = self.matcher, self._view.eos_token_ids

        def fits(close: list[int]) -> bool:
            return len(close) <= remaining and closes(matcher, close, end_ids)

        if self._close is None or not fits(self._close):
            self._close = next(filter(fits, self._remembered), None)
            if self._close is None:
                known = self._closing
                self._close = find_close(
                    matcher,
                    self._view,
                    known.words,
                    min(_MAX_CHOICES >> self._num_fruitless, remaining * _CHOICES_PER_TOKEN),
                    num_endings=known.num_endings,
                    is_in_string=is_in_string,
                )
                if self._close is None:
                    self._num_fruitless = min(self._num_fruitless + 1, _MOST_FRUITLESS)
                else:
                    self._remembered = [*self._remembered[1 - _NUM_REMEMBERED :], self._close]
        self._is_current = True
        self._margin = max(self._margin, len(self._close or ()))

    def _consumes(self, token_id: int) -> bool:
        """Whether the text goes on with it. If not, the text stands as it stood, or the matcher failed."""
        if token_id in self._view.eos_token_ids and not self.matcher.is_accepting():
            return False
        num_untold = len(self._untold)
        num_taken = self._matcher.try_consume_tokens([*self._untold, token_id])
        self._untold.clear()
        if num_taken > num_untold:
            return True
        self.is_failed = num_taken < num_untold or self._matcher.is_error()
        return False
