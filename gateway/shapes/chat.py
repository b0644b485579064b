"""OpenAI's `chat.completion`, whole and as its chunks, for one choice or several. Pure."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from engine.protocol import openai
from engine.protocol.events import ChoiceEnded, Finished, TokenLogprob, ToolCallDelta
from engine.protocol.outcome import Outcome
from gateway import envelope
from gateway.shapes.shape import DONE, Plain


class ChatText(Plain):
    """Text generation as `chat.completion`: bare, or in the envelope for models whose native shape it is."""

    def __init__(
        self,
        request_id: str,
        created: int,
        model: str,
        *,
        has_usage_chunk: bool,
        has_logprobs: bool,
        is_bare: bool,
        is_legacy: bool = False,
        num_choices: int = 1,
    ) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._created = created
        self._model = model
        self._has_usage_chunk = has_usage_chunk
        self._has_logprobs = has_logprobs
        self._is_bare = is_bare
        self._is_legacy = is_legacy
        self._num_choices = num_choices

    @functools.cached_property
    def _chunks(self) -> list[openai.ChatChunks]:
        """Of a stream, one for each choice."""
        return [
            openai.ChatChunks(
                self._id,
                self._created,
                self._model,
                has_usage_chunk=self._has_usage_chunk,
                is_legacy=self._is_legacy,
                index=index,
            )
            for index in range(self._num_choices)
        ]

    def whole(self, outcome: Outcome) -> bytes:
        completion = openai.chat_completion(
            self._id,
            self._created,
            self._model,
            outcome.choices,
            outcome.finished.usage,
            has_logprobs=self._has_logprobs,
            is_legacy=self._is_legacy,
        )
        return envelope.encode(completion) if self._is_bare else envelope.success(completion)

    def text(self, text: str, logprobs: Sequence[TokenLogprob], choice: int = 0) -> bytes:
        return b"data: " + self._chunks[choice].text(text, logprobs) + b"\n\n"

    def reasoning(self, text: str, choice: int = 0) -> bytes:
        chunk = self._chunks[choice].reasoning(text)
        return b"data: " + chunk + b"\n\n" if chunk else b""

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        chunk = self._chunks[delta.choice].tool_call(delta)
        return b"data: " + chunk + b"\n\n" if chunk else b""

    def choice_end(self, ended: ChoiceEnded) -> bytes:
        return b"data: " + self._chunks[ended.choice].end(ended.reason) + b"\n\n"

    def end(self, finished: Finished) -> bytes:
        frames = self.choice_end(ChoiceEnded(0, finished.reason)) if len(self._chunks) == 1 else b""
        if self._has_usage_chunk:
            frames += b"data: " + self._chunks[0].usage(finished.usage) + b"\n\n"
        return frames + DONE
