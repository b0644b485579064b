"""Control tokens: find those of a tokenizer, and prevent text from callers from being encoded as one.

Control tokens are removed from the vocabulary (`remove_control_tokens`), so plain text cannot be encoded as one. A
rendered template contains the template's own control tokens and text from callers. A `Guard` inserts marks into the
callers' text before rendering, so that both can be distinguished afterwards, even if the template cuts, joins or
quotes the text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # reserved by Unicode for internal use
_LOOKS_LIKE_CONTROL = re.compile(r"[<\[{|｜].*[>\]}|｜]", re.DOTALL)
# Gemma's vocabulary has HTML tags as added tokens. They are ordinary text and do not control the model.
_HTML = re.compile(
    r"</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup|code|p|br|a|ul|ol|li)>"
)
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MAX_DEPTH = 64  # nesting of lists and objects in a message or a tool


class NestingTooDeep(Exception):
    """A message or a tool has more than 64 levels of nesting."""


@dataclass(frozen=True)
class ControlToken:
    """An added token that controls the model.

    Attributes:
        is_hidden: the token is not shown in output text.
        strips_left, strips_right: white space before or after the token is dropped.
        is_single_word: the token is only recognized between word boundaries.
    """

    token_id: int
    text: str
    is_hidden: bool
    strips_left: bool
    strips_right: bool
    is_single_word: bool


class ControlTokens:
    """All control tokens of one tokenizer. Thread-safe.

    `template_words` are the strings in the model's chat template, which the template may search for in a message.
    """

    def __init__(self, controls: Sequence[ControlToken], template_words: Collection[str] = ()) -> None:
        self.by_text = {control.text: control for control in controls}
        self.pattern = _any_of(controls)
        self.words = frozenset(template_words)
        self._max_chars = max(map(len, self.by_text), default=0)
        self._tails = {text[start:] for text in self.by_text for start in range(1, len(text))}
        self._all = "\0".join(self.by_text)
        self._all_letters = "\0".join(map(_letters, self.by_text))
        hidden = [control.text for control in controls if control.is_hidden]
        shown = [control.text for control in controls if not control.is_hidden]
        searched = self._searched_strings()
        self._openings = self._openings_except(searched)
        self._openings_in_assistant = self._openings_except(
            {word for word in (*searched, *shown) if not any(text in word for text in hidden)}
        )

    def openings(self, *, is_assistant: bool) -> re.Pattern[str] | None:
        """Return a pattern for every character at which a control token could begin, except in strings that the
        template searches for.

        With `is_assistant`, visible control tokens (`<think>`) are also excepted: templates search for them there.
        """
        return self._openings_in_assistant if is_assistant else self._openings

    def could_end(self, text: str) -> bool:
        """Return True if `text` could complete a control token that the template began, as `im_end|>` after `<|`."""
        if any(text[:size] in self._tails for size in range(1, min(self._max_chars, len(text) + 1))):
            return True
        if not 0 < len(text) <= 2 * self._max_chars or text in self.words:
            return False
        letters = _letters(text)
        return text in self._all or (letters != "" and letters in self._all_letters)

    def _searched_strings(self) -> set[str]:
        """Return the parts of the template's strings, from a possible token start on, that must not be marked."""
        found = set()
        first = {text[0] for text in self.by_text if not text[0].isalnum()}
        for word in self.words:
            for start, char in enumerate(word):
                part = word[start:]
                if char in first and not any(text.startswith(part) or text in part for text in self.by_text):
                    found.add(part)
        return found

    def _openings_except(self, excepted: Collection[str]) -> re.Pattern[str] | None:
        if not self.by_text:
            return None
        signs = {text[0] for text in self.by_text if not text[0].isalnum()}
        words = [text for text in self.by_text if text[0].isalnum()]
        choices = [f"[{''.join(map(re.escape, sorted(signs)))}]"] if signs else []
        choices += [f"(?={re.escape(word)})." for word in words]
        unless = f"(?!{'|'.join(map(re.escape, sorted(excepted)))})" if excepted else ""
        return re.compile(f"{unless}(?:{'|'.join(choices)})", re.DOTALL)


class Guard:
    """The marks in one conversation.

    A mark is inserted after each character at which a control token could begin, and before a text that could
    complete one. Then no control token can be found in text from callers.
    """

    def __init__(self, controls: ControlTokens, values: Sequence[Any]) -> None:
        """`values` are all values that will be marked. Raises NestingTooDeep."""
        self._controls = controls
        texts = [text for value in values for text in _texts_in(value, 0)]
        self._mark, self._is_unused = _find_mark(texts)
        self._spellings = (self._mark, _escaped(self._mark))

    def mark_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return marked copies of messages."""
        return [{key: self._mark_field(message, key) for key in message} for message in messages]

    def mark(self, value: Any) -> Any:
        """Return a copy of a JSON value with all strings and keys marked."""
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, Mapping):
            return {self._mark_text(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value

    def _mark_field(self, message: Mapping[str, Any], key: str) -> Any:
        value = message[key]
        if key == "role":  # templates build control tokens around it: `<|` + role + `|>`
            return value if value in _ROLES else self.mark(value)
        if isinstance(value, str) and message.get("role") == "assistant":
            return self._mark_text(value, is_assistant=True)
        return self.mark(value)

    def remove_marks(self, text: str) -> str:
        """Return rendered text without marks, also where the template escaped them."""
        for spelling in self._spellings:
            text = text.replace(spelling, "")
        return text

    def _mark_text(self, text: str, *, is_assistant: bool = False) -> str:
        if not self._is_unused:
            text = self.remove_marks(text)
        openings = self._controls.openings(is_assistant=is_assistant)
        if openings is None:
            return text
        body = text.strip()
        marked = openings.sub(lambda match: match[0] + self._mark, text)
        if not self._controls.could_end(body):
            return marked
        start = len(text) - len(text.lstrip())  # the mark goes after leading white space, which templates may trim
        return marked[:start] + self._mark + marked[start:]


def remove_control_tokens(definition: dict[str, Any]) -> list[ControlToken]:
    """Rename every control token of a tokenizer definition to a random string, in place; return the control tokens.

    Their ids stay in use, so all other tokens keep their ids.
    """
    prefix = _NONCHARACTERS[0] + secrets.token_hex(8)
    model = definition["model"]
    controls = []
    names: dict[str, str] = {}
    for token in definition["added_tokens"]:
        text, token_id, is_hidden = token["content"], token["id"], token.get("special", False)
        looks_like_control = _LOOKS_LIKE_CONTROL.fullmatch(text) and not _HTML.fullmatch(text)
        if len(text) < 2 or not (is_hidden or looks_like_control):
            continue
        controls.append(
            ControlToken(
                token_id,
                text,
                is_hidden,
                strips_left=token.get("lstrip", False),
                strips_right=token.get("rstrip", False),
                is_single_word=token.get("single_word", False),
            )
        )
        names[text] = f"{prefix}:{token_id}{_NONCHARACTERS[0]}"
        token |= {"content": names[text], "normalized": False}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    vocab = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    else:
        model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocab.items()}
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _involves(merge, names)]
    return controls


def _involves(merge: str | list[str], names: Mapping[str, str]) -> bool:
    """Return True if a BPE merge uses or produces a renamed token."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names


def _any_of(controls: Sequence[ControlToken]) -> re.Pattern[str] | None:
    """Return a pattern for any of the control tokens, preferring the longest."""
    ordered = sorted(controls, key=lambda control: len(control.text), reverse=True)
    choices = [
        rf"(?<!\w){re.escape(control.text)}(?!\w)" if control.is_single_word else re.escape(control.text)
        for control in ordered
    ]
    return re.compile("|".join(choices)) if choices else None


def _letters(text: str) -> str:
    """Return the letters and digits of a text, independent of case: templates may change everything else."""
    return "".join(filter(str.isalnum, text)).casefold()


def _texts_in(value: Any, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise NestingTooDeep
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts_in(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item, depth + 1)


def _find_mark(texts: Sequence[str]) -> tuple[str, bool]:
    """Return a noncharacter, and True if no text contains it, literally or escaped.

    If the texts contain all noncharacters, the last one is removed from them and used.
    """
    for candidate in _NONCHARACTERS:
        if not any(candidate in text or _escaped(candidate) in text for text in texts):
            return candidate, True
    return _NONCHARACTERS[-1], False


def _escaped(mark: str) -> str:
    """Return a mark as JSON and Python escape it in ASCII output."""
    return f"\\u{ord(mark):04x}"
