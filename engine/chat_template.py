"""A conversation -> the text a model was trained to continue, by the model's own Jinja template.

The template comes with the model and is read in an immutable sandbox with a bound on its output and its time; nothing
a caller sends is ever evaluated. Renders as `transformers` does (trimmed blocks, loop controls, the same helpers).
Knows nothing of token ids; who keeps control tokens in a caller's text from being read as such is `tokenizer.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDERED_CHARS = 32 * 1024 * 1024
MAX_RENDER_S = 5.0

Message = Mapping[str, Any]


class TemplateRefused(Exception):
    """The model's template does not accept this conversation; the text says why, in the template's own words."""


class ChatTemplate:
    """One model's compiled template. `special_tokens` (`bos_token`, `eos_token`, …) are its variables."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises TemplateRefused when the source is not a template."""
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise TemplateRefused(f"the chat template cannot be read: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The whole prompt as text. Raises TemplateRefused when the template refuses or outgrows its bounds."""
        values = {"tools": None, "documents": None, **self._special_tokens, **variables}
        deadline = time.monotonic() + MAX_RENDER_S
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(
                messages=messages, add_generation_prompt=add_generation_prompt, **values
            ):
                size += len(piece)
                if size > MAX_RENDERED_CHARS or time.monotonic() > deadline:
                    raise TemplateRefused("the chat template's output is over its bounds")
                pieces.append(piece)
        except TemplateError as error:
            raise TemplateRefused(f"the model's chat template refused the messages: {error.message}") from error
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise TemplateRefused("the model's chat template cannot render these messages") from error
        return "".join(pieces)


def plain_conversation(messages: Sequence[Message]) -> str:
    """How a model without a template is shown a conversation: one `role: content` line each, then `assistant:`."""
    lines = [f"{message['role']}: {message['content']}\n" for message in messages]
    return "".join(lines) + "assistant:"


def find_chat_template(model_dir: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The model's template source: its own file first, then the tokenizer's configuration."""
    own_file = model_dir / "chat_template.jinja"
    if own_file.exists():
        return own_file.read_text(encoding="utf-8")
    configured = tokenizer_config.get("chat_template")
    if isinstance(configured, list):
        by_name = {entry["name"]: entry["template"] for entry in configured}
        configured = by_name.get("default")
    return configured


class _GenerationBlocks(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the assistant said, for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)  # the model is told the date of the machine it runs on


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's own `tojson`, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment
