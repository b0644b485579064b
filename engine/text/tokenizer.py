"""The tokenizer of one model: encodes plain text and conversations, decodes token ids (`detokenizer.py`).

Control tokens (end of turn, tool call, …) come only from the chat template, or from callers that set `raw`. In all
other text from callers they are plain text, because the vocabulary does not contain them (`control_tokens.py`).
Thread-safe.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Vocabulary

from engine.text.chat_template import ChatTemplate, find_chat_templates, plain_conversation
from engine.text.control_tokens import ControlTokens, Guard, NestingTooDeep, remove_control_tokens
from engine.text.definition import (
    adds_bos,
    chars_per_byte,
    leading_ids_of,
    special_tokens_of,
    without_leading_space,
)
from engine.text.detokenizer import Detokenizer, TokenBytes, UnsupportedTokenizer
from engine.text.files import TokenizerUnusable, read_definition
from engine.text.template_pool import TemplateRefused

_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_PROBE = "Hello, na\u00efve \u65e5\u672c \U0001f600\n  1234"


class Tokenizer:
    """One model's tokenizer, read from its folder."""

    def __init__(self, model_dir: Path) -> None:
        """Raises TokenizerUnusable."""
        try:
            definition, config = read_definition(model_dir)
            special_tokens = special_tokens_of(config)
            leading_ids = leading_ids_of(definition.get("post_processor"))
            controls = remove_control_tokens(definition)
            definition["post_processor"] = definition["truncation"] = definition["padding"] = None
            definition["model"].pop("dropout", None)  # for training only: makes the encoding random
            self._vocabulary = _build(definition)
            inner = without_leading_space(definition)
            self._inner_vocabulary = self._vocabulary if inner is None else _build(inner)
            shown = {control.token_id: "" if control.is_hidden else control.text for control in controls}
            self._token_bytes = TokenBytes(self._vocabulary, definition.get("decoder"), shown)
            self._chars_per_byte = chars_per_byte(definition)
        except (TokenizerUnusable, UnsupportedTokenizer) as error:
            raise TokenizerUnusable(f"tokenizer of {model_dir.name}: {error}") from error
        except OSError as error:
            raise TokenizerUnusable(f"tokenizer files of {model_dir.name} cannot be read: {error}") from error
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, OverflowError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise TokenizerUnusable(f"tokenizer.json of {model_dir.name} is damaged ({problem})") from error
        try:
            sources = find_chat_templates(model_dir, config)
            self._template = ChatTemplate(sources, special_tokens) if sources else None
        except (OSError, ValueError, TemplateRefused) as error:
            raise TokenizerUnusable(f"chat template of {model_dir.name}: {error}") from error
        self._controls = ControlTokens(controls, self._template.words if self._template else ())
        bos = self._controls.by_text.get(special_tokens.get("bos_token", ""))
        self._leading_id = bos.token_id if bos and adds_bos(config, leading_ids, bos.token_id) else None
        self._max_token_bytes = max((len(token.encode()) for token in self._vocabulary.get_vocab()), default=1)

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._template

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def control_id(self, text: str) -> int | None:
        """Return the id of the control token with this text, or None."""
        control = self._controls.by_text.get(text)
        return control.token_id if control else None

    @property
    def visible_control_ids(self) -> tuple[int, ...]:
        """Ids of control tokens that are shown in output text, such as `<think>`."""
        return tuple(control.token_id for control in self._controls.by_text.values() if not control.is_hidden)

    def min_tokens(self, text: str) -> int:
        """Return a lower bound of the number of tokens in `text` without encoding it; 0 if there is no bound."""
        if not self._chars_per_byte:
            return 0
        return sum(map(len, text.split())) // (self._chars_per_byte * self._max_token_bytes)

    def encode(self, text: str, *, parse_special: bool = False, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text to be continued.

        With `parse_special`, control tokens in the text are encoded as such. With `add_special_tokens`, the
        beginning-of-text token is added if the model expects one.
        """
        token_ids = self._encode_parts(text, self._controls.pattern if parse_special else None)
        if add_special_tokens and self._leading_id is not None and token_ids[:1] != [self._leading_id]:
            token_ids.insert(0, self._leading_id)
        return token_ids

    def encode_conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        image_markup: tuple[str, str] | None = None,
        **template_kwargs: Any,
    ) -> list[int]:
        """Return the prompt for the assistant's next message. Blocks while the template renders.

        `image_markup` is a text of the template that is replaced by another, wherever callers have not written it.
        All arguments are text from callers: control tokens in them are plain text, except visible ones (`<think>`)
        in assistant messages. The beginning-of-text token is only added by the template. Raises TemplateRefused.
        """
        if self._template is None:
            return self.encode(plain_conversation(messages))
        try:
            guard = Guard(self._controls, (messages, tools, template_kwargs))
        except NestingTooDeep as error:
            raise TemplateRefused("a message or a tool is nested too deeply") from error
        rendered = self._template.render(
            guard.mark_messages(messages),
            tools=None if tools is None else guard.mark(tools),
            add_generation_prompt=add_generation_prompt,
            **{name: guard.mark(value) for name, value in template_kwargs.items()},
        )
        if image_markup is not None:
            rendered = rendered.replace(*image_markup)
        return self._encode_parts(rendered, self._controls.pattern, guard)

    def detokenizer(self, *, starts_text: bool = True, show: Collection[str] = ()) -> Detokenizer:
        """Return a detokenizer for one sequence. `show` names hidden control tokens to show, such as those around a
        tool call; `starts_text` is explained in `Detokenizer`."""
        shown = {token_id: text.encode() for text in show if (token_id := self.control_id(text)) is not None}
        return Detokenizer(self._token_bytes, starts_text=starts_text, shown=shown)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a complete sequence."""
        return self.detokenizer().push(token_ids)

    def token_text(self, token_id: int) -> str:
        """Return the text of one token, for log probabilities; U+FFFD for incomplete characters."""
        return self._token_bytes[token_id].decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may be part of a character."""
        return self._token_bytes[token_id]

    def _encode_parts(self, text: str, pattern: re.Pattern[str] | None, guard: Guard | None = None) -> list[int]:
        """Return the token ids of `text`, in which matches of `pattern` are control tokens."""
        token_ids: list[int] = []
        position = 0
        strips_left = False
        for match in pattern.finditer(text) if pattern else ():
            control = self._controls.by_text[match[0]]
            between = text[position : match.start()]
            between = between.lstrip(_WHITE_SPACE) if strips_left else between
            between = between.rstrip(_WHITE_SPACE) if control.strips_left else between
            token_ids += self._encode_plain(between, guard, is_first=position == 0)
            token_ids.append(control.token_id)
            position, strips_left = match.end(), control.strips_right
        tail = text[position:].lstrip(_WHITE_SPACE) if strips_left else text[position:]
        token_ids += self._encode_plain(tail, guard, is_first=position == 0)
        return token_ids

    def _encode_plain(self, text: str, guard: Guard | None, *, is_first: bool) -> list[int]:
        """Return the token ids of plain text."""
        text = guard.remove_marks(text) if guard else text
        if not text:
            return []
        vocabulary = self._vocabulary if is_first else self._inner_vocabulary
        try:
            token_ids: list[int] = vocabulary.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):  # a lone surrogate
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            token_ids = vocabulary.encode(text, add_special_tokens=False).ids
        return token_ids


def _build(definition: dict[str, Any]) -> Vocabulary:
    """Build the library's tokenizer and encode once, so that it fails now or never. Raises TokenizerUnusable."""
    try:
        vocabulary = Vocabulary.from_str(msgspec.json.encode(definition).decode())
        vocabulary.encode(_PROBE, add_special_tokens=False)
    except MemoryError:
        raise
    except BaseException as error:  # the library raises Exception, and its panics derive from BaseException
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TokenizerUnusable(f"tokenizer.json: {error}") from error
    model = vocabulary.model
    if hasattr(model, "_resize_cache"):  # a cache of words would make one tenant's text faster for the next
        model._resize_cache(0)
    return vocabulary
