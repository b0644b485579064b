"""Prompts: turn a text generation input into token ids with the model's chat template and tokenizer.

Prompts that cannot fit into the context are refused as early as possible. Long texts and conversations are processed
in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from engine.protocol.tasks.text_generation import TextGeneration
from engine.report import EngineInfo
from engine.tasks.work import Refused
from engine.text.template_pool import TemplateRefused
from engine.text.tokenizer import Tokenizer
from engine.tool_calls.output_plan import shown_tools
from engine.tool_calls.tool_format import ToolFormat, template_messages, template_tools

_LONG_TEXT_CHARS = 20_000  # longer texts are tokenized in a thread, off the event loop


class PromptReader:
    """Reads the prompts of one model.

    `form` is how the model's template writes tool calls. `image_markup` is the template's text for an image, and the
    text that replaces it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        form: ToolFormat | None,
        info: EngineInfo,
        image_markup: tuple[str, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._form = form
        self._info = info
        self._image_markup = image_markup

    async def read(self, task: TextGeneration) -> Sequence[int]:
        """Return the token ids of the prompt: at least one, and fewer than the context holds. Raises Refused."""
        if task.prompt_token_ids is None:
            prompt = await self._encode(task)
        else:
            prompt = self._check_token_ids(task.prompt_token_ids)
        if not prompt:
            raise Refused("invalid_input", "the prompt is empty, and this model needs at least one token")
        return prompt

    def uses_template(self, task: TextGeneration) -> bool:
        """Return True if the prompt is a conversation, so that the model writes a whole assistant message."""
        if task.messages is not None:
            return True
        return task.prompt is not None and self._tokenizer.has_chat_template and not task.raw

    def starts_text(self, task: TextGeneration, num_prompt: int) -> bool:
        """Return True if the output is a text of its own, False if it continues the caller's text."""
        is_conversation = task.messages is not None or (self._tokenizer.has_chat_template and not task.raw)
        return is_conversation or num_prompt <= 1

    def _check_token_ids(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the caller's token ids if they are valid."""
        self.refuse_long(token_ids)
        vocab_size = self._info.vocab_size
        if not all(0 <= token_id < vocab_size for token_id in token_ids):
            raise Refused("invalid_input", f"token ids must be from 0 to {vocab_size - 1}")
        return token_ids

    async def _encode(self, task: TextGeneration) -> Sequence[int]:
        self._refuse_too_large(task)
        # Rendering a template waits for another process.
        is_quick = not self.uses_template(task) and len(task.prompt or "") < _LONG_TEXT_CHARS
        try:
            prompt = self._encode_now(task) if is_quick else await asyncio.to_thread(self._encode_now, task)
        except TemplateRefused as error:
            raise Refused("invalid_input", str(error)) from error
        self.refuse_long(prompt)
        return prompt

    def _encode_now(self, task: TextGeneration) -> list[int]:
        template_kwargs: dict[str, Any] = dict(task.template_kwargs)
        if task.messages is not None:
            messages = template_messages(task.messages, self._form)
            tools = template_tools(shown_tools(task)) or None
            markup = self._image_markup if task.images else None
            return self._tokenizer.encode_conversation(messages, tools=tools, image_markup=markup, **template_kwargs)
        assert task.prompt is not None
        if task.raw or not self._tokenizer.has_chat_template:
            return self._tokenizer.encode(task.prompt, parse_special=task.raw)
        return self._tokenizer.encode_conversation([{"role": "user", "content": task.prompt}], **template_kwargs)

    def refuse_long(self, prompt: Sequence[int]) -> None:
        """Raise Refused if the context cannot hold the prompt and a token of output."""
        max_model_len = self._info.max_model_len
        if len(prompt) >= max_model_len:
            raise _too_long(f"the prompt has {len(prompt)} tokens", max_model_len)

    def _refuse_too_large(self, task: TextGeneration) -> None:
        """Refuse texts whose size alone shows that they cannot fit, without tokenizing them."""
        texts = [task.prompt or "", *(message.content for message in task.messages or ())]
        at_least = sum(self._tokenizer.min_tokens(text) for text in texts)
        if at_least >= self._info.max_model_len:
            raise _too_long(f"the prompt has at least {at_least} tokens", self._info.max_model_len)


def _too_long(problem: str, max_model_len: int) -> Refused:
    return Refused(
        "context_too_long", f"{problem}, and this model's context is {max_model_len} tokens with the output included"
    )
