"""A conversation -> the text a model was trained to continue, by the model's own Jinja template.

The template comes with the model and runs in a bounded sandbox (`sandbox.py`); nothing a caller sends is ever
evaluated. Renders as `transformers` does, the choice among a model's named templates included. Knows nothing of token
ids; who keeps control tokens in a caller's text from being read as such is the tokenizer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes

from engine.text.template_budget import MAX_TEXT_CHARS, OverBounds, bounded
from engine.text.template_sandbox import BoundedEnvironment

MAX_TEMPLATE_CHARS = 1024 * 1024
DEFAULT = "default"
FOR_TOOLS = "tool_use"

_SLOW_S = 0.02  # what renders longer is not rendered where others wait
_WRONG_VALUES = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    NotImplementedError,
)

Message = Mapping[str, Any]


class TemplateRefused(Exception):
    """The model's template does not accept this conversation; the text says why, in the template's own words."""


class ChatTemplate:
    """One model's compiled templates.

    `sources` is one template or several by name: `default`, `tool_use` for conversations with tools, and others that
    a caller chooses. `special_tokens` (`bos_token`, `eos_token`, …) are their variables; `now` is the date they see.
    `words` are the names and texts that their sources reckon with, `written` what they write out as it stands;
    `reads_tools` says whether any shows tools to the model.
    """

    def __init__(
        self,
        sources: str | Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raises TemplateRefused when a source is not a template."""
        by_name = {DEFAULT: sources} if isinstance(sources, str) else sources
        environment = BoundedEnvironment(now)
        self._templates: dict[str, Template] = {}
        self._special_tokens = dict(special_tokens)
        self.words: frozenset[str] = frozenset()
        self.written: frozenset[str] = frozenset()
        self.reads_tools = False
        self.is_slow = False
        for name, source in by_name.items():
            self._templates[name], words, written, variables = _compile(environment, source)
            self.words |= words
            self.written |= written
            self.reads_tools = self.reads_tools or "tools" in variables

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._templates)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        **template_kwargs: Any,
    ) -> str:
        """The whole prompt as text. `chat_template` names one of several. Raises TemplateRefused when the template
        refuses or outgrows its bounds. Once a rendering was long, `is_slow` says so."""
        template = self._find(chat_template, has_tools=tools is not None)
        values = {"documents": None, **self._special_tokens, **template_kwargs}
        values |= {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        started_s = time.thread_time()
        pieces: list[str] = []
        size = 0
        try:
            with bounded():
                for piece in template.generate(values):
                    size += len(piece)
                    if size > MAX_TEXT_CHARS:
                        raise OverBounds("the chat template writes too much")
                    pieces.append(piece)
        except TemplateError as error:
            raise TemplateRefused(f"the model's chat template refused the messages: {error.message}") from error
        except _WRONG_VALUES as error:
            raise TemplateRefused("the model's chat template cannot render these messages") from error
        finally:
            self.is_slow = self.is_slow or time.thread_time() - started_s > _SLOW_S
        return "".join(pieces)

    def _find(self, name: str | None, *, has_tools: bool) -> Template:
        if name is None:
            name = FOR_TOOLS if has_tools and FOR_TOOLS in self._templates else DEFAULT
        found = self._templates.get(name)
        if found is None:
            choices = ", ".join(self._templates)
            raise TemplateRefused(f"the model has no chat template named {name}; it has {choices}")
        return found


def plain_conversation(messages: Sequence[Message]) -> str:
    """How a model without a template is shown a conversation: one `role: content` line each, then `assistant:`."""
    lines = [f"{message['role']}: {message.get('content') or ''}\n" for message in messages]
    return "".join(lines) + "assistant:"


def find_chat_templates(model_dir: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """The model's template sources by name: the tokenizer's configuration, and before it the model's own files
    (`chat_template.jinja`, `chat_template.json`, `additional_chat_templates/NAME.jinja`). Raises ValueError, OSError.
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


def _compile(
    environment: BoundedEnvironment, source: str
) -> tuple[Template, frozenset[str], frozenset[str], frozenset[str]]:
    """The template, the texts and attributes that its expressions spell, the texts between them, and the variables it
    reads. Raises TemplateRefused."""
    if len(source) > MAX_TEMPLATE_CHARS:
        raise TemplateRefused(f"the chat template is over {MAX_TEMPLATE_CHARS} characters")
    try:
        with bounded():
            tree = environment.parse(source)
            words = {constant.value for constant in tree.find_all(nodes.Const) if isinstance(constant.value, str)}
            words |= {attribute.attr for attribute in tree.find_all(nodes.Getattr)}
            written = {data.data for data in tree.find_all(nodes.TemplateData)}
            variables = {variable.name for variable in tree.find_all(nodes.Name)}
            return environment.from_string(tree), frozenset(words), frozenset(written), frozenset(variables)
    except TemplateError as error:
        raise TemplateRefused(f"the chat template cannot be read: {error}") from error
    except (SyntaxError, RecursionError, MemoryError, *_WRONG_VALUES) as error:
        raise TemplateRefused("the chat template cannot be read: it is too large or nested too deep") from error


def _by_name(configured: Any, where: str) -> dict[str, str]:
    """What stands under `chat_template`: nothing, one source, or a list or object of several by name."""
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
        raise ValueError(f"chat_template in {where} is neither a template nor a list of named ones") from error
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
        raise ValueError(f"{file.name} is not an object")
    return value
