"""OpenAI's `text_completion`, whole and as its chunks: the last chunk of a choice says why it ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol import completions
from engine.protocol.completions import Completions
from engine.protocol.events import ChoiceEnded, Finished, FinishReason, Started, TokenLogprob, ToolCallDelta
from engine.protocol.outcome import Outcome
from gateway import envelope
from gateway.errors import Refusal
from gateway.shapes.shape import DONE, error_frame


class CompletionText:
    """The choices of every prompt in turn, bare or in the envelope. `echoes` has for each prompt the text that its
    choices begin with."""

    def __init__(
        self,
        request_id: str,
        created: int,
        model: str,
        asked: Completions,
        *,
        echoes: Sequence[str],
        has_usage_chunk: bool,
        is_bare: bool = True,
    ) -> None:
        self._head = (f"cmpl-{request_id}", created, model)
        self._asked = asked
        self._echoes = echoes
        self._has_usage_chunk = has_usage_chunk
        self._has_logprobs = asked.sampling.logprobs is not None
        self._is_bare = is_bare
        self._chunks = completions.CompletionChunks(*self._head, has_usage_chunk=has_usage_chunk)
        self._offsets = [0] * (len(echoes) * asked.num_tries)

    def whole(self, outcome: Outcome) -> bytes:
        tries = [
            outcome.choices[first : first + self._asked.num_tries]
            for first in range(0, len(self._offsets), self._asked.num_tries)
        ]
        answer = completions.whole(*self._head, self._asked, self._echoes, tries, outcome.finished.usage)
        return envelope.encode(answer) if self._is_bare else envelope.success(answer)

    def begin(self, _started: Started) -> bytes:
        of_choices = [echo for echo in self._echoes for _ in range(self._asked.num_tries)]
        return b"".join(_frame(self._chunks.text(index, echo)) for index, echo in enumerate(of_choices) if echo)

    def text(self, text: str, logprobs: Sequence[TokenLogprob], choice: int = 0) -> bytes:
        if not self._has_logprobs:
            return _frame(self._chunks.text(choice, text))
        offset = self._offsets[choice]
        self._offsets[choice] += len(text)
        return _frame(self._chunks.choice(choice, text, None, logprobs, offset))

    def reasoning(self, _text: str, _choice: int = 0) -> bytes:
        raise AssertionError("a text is continued without a template that would have the model think")

    def tool_call(self, _delta: ToolCallDelta) -> bytes:
        raise AssertionError("a text is continued without tools")

    def choice_end(self, ended: ChoiceEnded) -> bytes:
        return self._end_of(ended.choice, ended.reason)

    def end(self, finished: Finished) -> bytes:
        frames = self._end_of(0, finished.reason) if len(self._offsets) == 1 else b""
        if self._has_usage_chunk:
            frames += _frame(self._chunks.usage(finished.usage))
        return frames + DONE

    def error(self, refusal: Refusal) -> bytes:
        return error_frame(refusal)

    def _end_of(self, choice: int, reason: FinishReason) -> bytes:
        return _frame(self._chunks.choice(choice, "", reason, None, 0))


def _frame(chunk: bytes) -> bytes:
    return b"data: " + chunk + b"\n\n"
