"""Text <-> token ids of one model: plain text, conversations through the chat template, and back (`detokenizer.py`).

Control tokens (end of turn, tool call, …) come from the template and from callers who ask for them by `raw`; inside
anything else a caller wrote they are plain text, since the vocabulary that encodes it does not contain them
(`control_tokens.py`). Knows nothing of sequences or of the device; safe to use from several threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Vocabulary

from engine.text.chat_template import ChatTemplate, find_chat_templates, plain_conversation
from engine.text.control_tokens import ControlTokens, Guard, TooDeep, take_out_controls
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
            controls = take_out_controls(definition)
            definition["post_processor"] = definition["truncation"] = definition["padding"] = None
            definition["model"].pop("dropout", None)  # which makes training vary, and would answers
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
            what = f"{type(error).__name__}: {error}"
            raise TokenizerUnusable(f"tokenizer.json of {model_dir.name} is damaged ({what})") from error
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
        """The id of the control token spelled exactly `text`."""
        control = self._controls.by_text.get(text)
        return control.token_id if control else None

    @property
    def shown_control_ids(self) -> tuple[int, ...]:
        """The ids of control tokens that show in an answer (`<think>`)."""
        return tuple(control.token_id for control in self._controls.by_text.values() if not control.is_hidden)

    def min_tokens(self, text: str) -> int:
        """A lower bound of the tokens in `text`, without encoding it; 0 for a tokenizer that may leave text out."""
        if not self._chars_per_byte:
            return 0
        return sum(map(len, text.split())) // (self._chars_per_byte * self._max_token_bytes)

    def encode(self, text: str, *, is_raw: bool = False, is_bare: bool = False) -> list[int]:
        """A text to be continued. `is_raw`: the caller writes the model's own format, so control tokens count;
        `is_bare`: nothing is put before it."""
        token_ids = self._encode_parts(text, self._controls.pattern if is_raw else None)
        if not is_bare and self._leading_id is not None and token_ids[:1] != [self._leading_id]:
            token_ids.insert(0, self._leading_id)
        return token_ids

    def encode_conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> list[int]:
        """The prompt that asks for the assistant's next turn. Raises TemplateRefused.

        Everything given here is a caller's: control tokens in it are plain text, but for the shown ones
        (`<think>`) in an assistant's own turn. Nothing is put before what the template writes.
        """
        if self._template is None:
            return self.encode(plain_conversation(messages))
        try:
            guard = Guard(self._controls, (messages, tools, template_kwargs))
        except TooDeep as error:
            raise TemplateRefused("a message or a tool is nested too deep") from error
        rendered = self._template.render(
            guard.messages(messages),
            tools=None if tools is None else guard.guarded(tools),
            add_generation_prompt=add_generation_prompt,
            **{name: guard.guarded(value) for name, value in template_kwargs.items()},
        )
        return self._encode_parts(rendered, self._controls.pattern, guard)

    def detokenizer(self, *, is_own_text: bool = True, keep: Collection[str] = ()) -> Detokenizer:
        """For one sequence; see `Detokenizer`. `keep` names hidden control tokens that are to show all the same, such
        as the marks around a tool call."""
        kept = {token_id: text.encode() for text in keep if (token_id := self.control_id(text)) is not None}
        return Detokenizer(self._token_bytes, is_own_text=is_own_text, kept=kept)

    def decode(self, token_ids: Sequence[int]) -> str:
        """All of it at once, as a text of its own."""
        return self.detokenizer().push(token_ids)

    def token_text(self, token_id: int) -> str:
        """One token's own text, for log-probabilities; bytes that are no character show as U+FFFD."""
        return self._token_bytes[token_id].decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token spells; not always those of whole characters."""
        return self._token_bytes[token_id]

    def _encode_parts(self, text: str, pattern: re.Pattern[str] | None, guard: Guard | None = None) -> list[int]:
        """`text` split at the controls that `pattern` finds: their ids, and the ids of the plain text between them."""
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
        rest = text[position:].lstrip(_WHITE_SPACE) if strips_left else text[position:]
        token_ids += self._encode_plain(rest, guard, is_first=position == 0)
        return token_ids

    def _encode_plain(self, text: str, guard: Guard | None, *, is_first: bool) -> list[int]:
        """Ids of text that holds no control tokens, whatever it looks like."""
        text = guard.without_marks(text) if guard else text
        if not text:
            return []
        vocabulary = self._vocabulary if is_first else self._inner_vocabulary
        try:
            token_ids: list[int] = vocabulary.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):  # half a surrogate pair, which no vocabulary knows
            sound = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            token_ids = vocabulary.encode(sound, add_special_tokens=False).ids
        return token_ids


def _build(definition: dict[str, Any]) -> Vocabulary:
    """The library's tokenizer; encodes once, to learn now what would fail later. Raises TokenizerUnusable."""
    try:
        vocabulary = Vocabulary.from_str(msgspec.json.encode(definition).decode())
        vocabulary.encode(_PROBE, add_special_tokens=False)
    except MemoryError:
        raise
    except BaseException as error:  # the library raises bare Exception, and its panics are not even that
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TokenizerUnusable(f"tokenizer.json: {error}") from error
    model = vocabulary.model
    if hasattr(model, "_resize_cache"):  # it keeps words, so what one tenant sent would be faster for the next
        model._resize_cache(0)
    return vocabulary
