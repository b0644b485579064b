"""The echo of a prompt at the start of its completions: its text, and the log probabilities of its tokens if
requested.

Of several choices, one computes them and all emit them; the others hold back their output until then. Knows token texts
only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from engine.protocol.events import Token, TokenLogprob
from engine.ranks.output import TokenIdLogprob


class PromptEcho:
    """The echo of one prompt. When it is complete (`is_ready`), the waiting callback is called once."""

    def __init__(
        self, text: str, token_texts: Sequence[str], num_tops: int | None, token_text: Callable[[int], str]
    ) -> None:
        """`num_tops` None: no log probabilities are requested. `token_text` returns a token's own text."""
        self._text = text
        self._token_texts = token_texts
        self._num_tops = num_tops
        self._token_text = token_text
        self._scores: list[TokenLogprob] = []
        self._waiting: list[Callable[[], None]] = []
        if num_tops is not None:
            self._scores.append(TokenLogprob(token_texts[0], math.nan))

    @property
    def is_ready(self) -> bool:
        return self._num_tops is None or len(self._scores) == len(self._token_texts)

    def add(self, scores: Sequence[TokenIdLogprob]) -> None:
        """Add the log probabilities of the next tokens."""
        assert self._num_tops is not None
        for score in scores:
            top = tuple((self._token_text(token_id), logprob) for token_id, logprob in score.top[: self._num_tops])
            self._scores.append(TokenLogprob(self._token_texts[len(self._scores)], score.logprob, top))
        if self.is_ready:
            waiting, self._waiting = self._waiting, []
            for wake in waiting:
                wake()

    def when_ready(self, wake: Callable[[], None]) -> None:
        self._waiting.append(wake)

    def token(self, choice: int) -> Token:
        """Return the event with which a choice starts."""
        return Token(self._text, 0, tuple(self._scores), choice)
