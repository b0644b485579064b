"""The prompt that every answer to it begins with: its text, and the log-probabilities of its tokens where those are
wanted, as the engine finds them out.

Of several answers one computes them, and all tell them: the others wait with what they have to say. Knows tokens' texts
and nothing of answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from engine.protocol.events import Token, TokenLogprob
from engine.ranks.output import TokenIdLogprob


class PromptEcho:
    """What is told of one prompt. `is_ready` once nothing is missing; who waits for that is then called, once."""

    def __init__(self, text: str, token_texts: Sequence[str], num_tops: int | None, say: Callable[[int], str]) -> None:
        """`num_tops` None: no log-probabilities are wanted. `say` gives a token's own text."""
        self._text = text
        self._token_texts = token_texts
        self._num_tops = num_tops
        self._say = say
        self._scores: list[TokenLogprob] = []
        self._waiting: list[Callable[[], None]] = []
        if num_tops is not None:
            self._scores.append(TokenLogprob(token_texts[0], math.nan))

    @property
    def is_ready(self) -> bool:
        return self._num_tops is None or len(self._scores) == len(self._token_texts)

    def add(self, scores: Sequence[TokenIdLogprob]) -> None:
        """Those of the next tokens."""
        assert self._num_tops is not None
        for score in scores:
            top = tuple((self._say(token_id), logprob) for token_id, logprob in score.top[: self._num_tops])
            self._scores.append(TokenLogprob(self._token_texts[len(self._scores)], score.logprob, top))
        if self.is_ready:
            waiting, self._waiting = self._waiting, []
            for wake in waiting:
                wake()

    def when_ready(self, wake: Callable[[], None]) -> None:
        self._waiting.append(wake)

    def token(self, choice: int) -> Token:
        """The beginning of an answer."""
        return Token(self._text, 0, tuple(self._scores), choice)
