"""The prompt of a task -> token ids, by the model's template and tokenizer; what cannot fit is refused as early as it
shows.

Long texts go through a thread. Knows nothing of sequences or of what the answer is held to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.protocol.tasks.text_generation import TextGeneration
from engine.report import EngineInfo
from engine.tasks.work import Refused
from engine.text.chat_template import TemplateRefused
from engine.text.tokenizer import Tokenizer
from engine.tool_calls.form import Form, template_messages, template_tools
from engine.tool_calls.plan import shown_tools

_LONG_TEXT_CHARS = 20_000  # longer ones are tokenised in a thread, where they hold up nobody
_CHARS_PER_MESSAGE = 100  # what a turn costs beside its text, in characters of text


class PromptReader:
    """Of one model. `form` is how its template writes calls of tools."""

    def __init__(self, tokenizer: Tokenizer, form: Form | None, info: EngineInfo) -> None:
        self._tokenizer = tokenizer
        self._form = form
        self._info = info

    async def read(self, task: TextGeneration) -> Sequence[int]:
        """The ids of the prompt: at least one, and fewer than the context. Raises Refused."""
        prompt = await self._encoded(task) if task.prompt_token_ids is None else self._given(task.prompt_token_ids)
        if not prompt:
            raise Refused("invalid_input", "the prompt is empty, and this model needs at least one token")
        return prompt

    def is_turn(self, task: TextGeneration) -> bool:
        """Whether the prompt is the template's, so that what follows is the assistant's whole turn."""
        if task.messages is not None:
            return True
        return task.prompt is not None and self._tokenizer.has_chat_template and not task.raw

    def is_own_text(self, task: TextGeneration, num_prompt: int) -> bool:
        """Whether the answer is a text of its own, rather than going on with one that the caller knows."""
        is_conversation = task.messages is not None or (self._tokenizer.has_chat_template and not task.raw)
        return is_conversation or num_prompt <= 1

    def _given(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The caller's own, once they are looked at."""
        self._refuse_long(token_ids)
        vocab_size = self._info.vocab_size
        if not all(0 <= token_id < vocab_size for token_id in token_ids):
            raise Refused("invalid_input", f"token ids must be from 0 to {vocab_size - 1}")
        return token_ids

    async def _encoded(self, task: TextGeneration) -> Sequence[int]:
        self._refuse_hopeless(task)
        is_short = _num_chars(task) < _LONG_TEXT_CHARS and not self._tokenizer.is_slow
        try:
            prompt = self._encode(task) if is_short else await asyncio.to_thread(self._encode, task)
        except TemplateRefused as error:
            raise Refused("invalid_input", str(error)) from error
        self._refuse_long(prompt)
        return prompt

    def _encode(self, task: TextGeneration) -> list[int]:
        switches: dict[str, Any] = dict(task.template_kwargs)
        if task.messages is not None:
            turns = template_messages(task.messages, self._form)
            tools = template_tools(shown_tools(task)) or None
            return self._tokenizer.encode_conversation(turns, tools=tools, **switches)
        assert task.prompt is not None
        if task.raw or not self._tokenizer.has_chat_template:
            return self._tokenizer.encode(task.prompt, is_raw=task.raw)
        turns = [{"role": "user", "content": task.prompt}]
        return self._tokenizer.encode_conversation(turns, **switches)

    def _refuse_long(self, prompt: Sequence[int]) -> None:
        max_model_len = self._info.max_model_len
        if len(prompt) >= max_model_len:
            raise _too_long(f"the prompt has {len(prompt)} tokens", max_model_len)

    def _refuse_hopeless(self, task: TextGeneration) -> None:
        """Texts whose very size rules them out are not tokenised."""
        texts = [task.prompt or "", *(message.content for message in task.messages or ())]
        at_least = sum(self._tokenizer.min_tokens(text) for text in texts)
        if at_least >= self._info.max_model_len:
            raise _too_long(f"the prompt has at least {at_least} tokens", self._info.max_model_len)


def _num_chars(task: TextGeneration) -> int:
    """About as many as the template will have to write."""
    messages = task.messages or ()
    size = len(task.prompt or "") + sum(len(message.content) + _CHARS_PER_MESSAGE for message in messages)
    size += sum(len(call.arguments) for message in messages for call in message.tool_calls)
    size += sum(len(message.reasoning) for message in messages)
    return size + len(msgspec.json.encode(shown_tools(task)))


def _too_long(what: str, max_model_len: int) -> Refused:
    return Refused("context_too_long", f"{what}, and this model's context is {max_model_len} with the answer included")
