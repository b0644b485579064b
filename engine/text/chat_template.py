"""Chat templates: render a conversation as the text that the model was trained to continue.

The template comes with the model and is rendered in a sandboxed worker process (`template_pool.py`); text from callers
is never evaluated. Renders as `transformers` does, including the choice among a model's named templates. Tokenization
and the protection of control tokens are the tokenizer's work.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from engine.text.template_pool import SHARED_POOL, LimitsExceeded, TemplatePool, TemplateRefused

MAX_TEMPLATE_CHARS = 1024 * 1024
DEFAULT = "default"
FOR_TOOLS = "tool_use"

Message = Mapping[str, Any]


class ChatTemplate:
    """The templates of one model.

    `sources` is one template, or several by name: `default`, `tool_use` for conversations with tools, and others that
    a caller can choose. `special_tokens` (`bos_token`, `eos_token`, …) are variables of the templates.

    Attributes:
        words: the strings and attribute names in the templates' expressions.
        written: the texts that the templates contain literally.
        reads_tools: True if any template shows tools to the model.
    """

    def __init__(
        self,
        sources: str | Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
        pool: TemplatePool = SHARED_POOL,
    ) -> None:
        """Raises TemplateRefused if a source is not a template. Blocks; `now` is the time that templates print."""
        self._sources = {DEFAULT: sources} if isinstance(sources, str) else dict(sources)
        self._special_tokens = dict(special_tokens)
        self._now = now
        self._pool = pool
        self._exceeded_limits = False
        self._slow_render = threading.Lock()
        self.words: frozenset[str] = frozenset()
        self.written: frozenset[str] = frozenset()
        self.reads_tools = False
        for source in self._sources.values():
            if len(source) > MAX_TEMPLATE_CHARS:
                raise TemplateRefused(f"the chat template is over {MAX_TEMPLATE_CHARS} characters")
            compiled = pool.compile(source)
            self.words |= compiled.words
            self.written |= compiled.written
            self.reads_tools = self.reads_tools or "tools" in compiled.variables

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._sources)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        **template_kwargs: Any,
    ) -> str:
        """Return the prompt as text. `chat_template` selects a template by name. Blocks for a round trip to a worker.

        Raises TemplateRefused if the template rejects the conversation or exceeds its limits.
        """
        source = self._find(chat_template, has_tools=tools is not None)
        values = {"documents": None, **self._special_tokens, **template_kwargs}
        values |= {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        if not self._exceeded_limits:
            return self._render(source, values)
        # A template that exceeded its limits gets one worker at a time, so that others always find one.
        if not self._slow_render.acquire(blocking=False):
            raise TemplateRefused("the model's chat template takes too long; another conversation is being rendered")
        try:
            return self._render(source, values)
        finally:
            self._slow_render.release()

    def _render(self, source: str, values: dict[str, Any]) -> str:
        try:
            text = self._pool.render(source, values, self._now())
        except LimitsExceeded:
            self._exceeded_limits = True
            raise
        self._exceeded_limits = False
        return text

    def _find(self, name: str | None, *, has_tools: bool) -> str:
        if name is None:
            name = FOR_TOOLS if has_tools and FOR_TOOLS in self._sources else DEFAULT
        found = self._sources.get(name)
        if found is None:
            choices = ", ".join(self._sources)
            raise TemplateRefused(f"the model has no chat template named {name}; it has {choices}")
        return found


def plain_conversation(messages: Sequence[Message]) -> str:
    """Render a conversation for a model without a template: one `role: content` line per message, then `assistant:`."""
    lines = [f"{message['role']}: {message.get('content') or ''}\n" for message in messages]
    return "".join(lines) + "assistant:"


def find_chat_templates(model_dir: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the model's template sources by name.

    The model's own files (`chat_template.jinja`, `chat_template.json`, `additional_chat_templates/NAME.jinja`) take
    precedence over the tokenizer's configuration. Raises ValueError, OSError.
    """
    found = _by_name(tokenizer_config.get("chat_template"), "tokenizer_config.json")
    legacy = model_dir / "chat_template.json"
    if legacy.exists():
        found |= _by_name(_read_json(legacy).get("chat_template"), legacy.name)
    own_file = model_dir / "chat_template.jinja"
    if own_file.exists():
        found[DEFAULT] = _read(own_file)
    for file in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = _read(file)
    return found


def _by_name(configured: Any, file_name: str) -> dict[str, str]:
    """Return the templates in a `chat_template` field: none, one source, or a list or object of several by name."""
    if not configured:
        return {}
    if isinstance(configured, str):
        return {DEFAULT: configured}
    try:
        if isinstance(configured, list):
            configured = {entry["name"]: entry["template"] for entry in configured}
        if not all(isinstance(text, str) for pair in configured.items() for text in pair):
            raise TypeError
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"chat_template in {file_name} must be a template or a list of named templates") from error
    return dict(configured)


def _read(file: Path) -> str:
    if file.stat().st_size > 4 * MAX_TEMPLATE_CHARS:
        raise ValueError(f"{file.name} is over {MAX_TEMPLATE_CHARS} characters")
    return file.read_text(encoding="utf-8")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file.name} is not a JSON object")
    return value
