"""The control tokens of one tokenizer: which they are, and how a caller's text is kept from being read as one.

Controls leave the vocabulary (`take_out_controls`), so no plain text can become one. What a template makes of a
conversation holds both its own controls and the callers' words; a `Guard` puts marks into the words beforehand, so that
the two can be told apart afterwards, whatever the template cuts, joins or quotes. Knows nothing of templates but the
words in them, and nothing of how plain text is encoded.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # Unicode keeps these out of interchanged text
_LOOKS_LIKE_CONTROL = re.compile(r"[<\[{|｜].*[>\]}|｜]", re.DOTALL)
# Gemma's vocabulary has these as tokens of their own; they are what people write, and steer nothing.
_HTML = re.compile(
    r"</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup|code|p|br|a|ul|ol|li)>"
)
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MAX_DEPTH = 64  # of lists and objects inside a message or a tool


class TooDeep(Exception):
    """What a caller sent is nested deeper than any template reads."""


@dataclass(frozen=True)
class ControlToken:
    """An added token that means something to the model beyond its text. `is_hidden`: it never shows in an answer.
    `strips_left` and `strips_right`: it swallows the white space beside it."""

    token_id: int
    text: str
    is_hidden: bool
    strips_left: bool
    strips_right: bool
    is_single_word: bool


class ControlTokens:
    """All control tokens of one tokenizer, and the words of its chat template, which it may look for in a caller's
    text. Safe to use from several threads."""

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
        looked_for = self._looked_for()
        self._openings = self._openings_but(looked_for)
        self._openings_in_answers = self._openings_but(
            {word for word in (*looked_for, *shown) if not any(text in word for text in hidden)}
        )

    def openings(self, *, is_answer: bool) -> re.Pattern[str] | None:
        """Matches every character where a control could begin, of a text that a template does not look for. In an
        assistant's own answer the shown controls (`<think>`) stay, since templates look for them there."""
        return self._openings_in_answers if is_answer else self._openings

    def could_end(self, text: str) -> bool:
        """Whether `text` could go on with a control that a template has begun: `<|` and then `im_end|>`."""
        if any(text[:size] in self._tails for size in range(1, min(self._max_chars, len(text) + 1))):
            return True
        if not 0 < len(text) <= 2 * self._max_chars or text in self.words:
            return False
        letters = _letters(text)
        return text in self._all or (letters != "" and letters in self._all_letters)

    def _looked_for(self) -> set[str]:
        """Beginnings of the template's own words at which a caller's text stays as it is."""
        found = set()
        first = {text[0] for text in self.by_text if not text[0].isalnum()}
        for word in self.words:
            for start, char in enumerate(word):
                rest = word[start:]
                if char in first and not any(text.startswith(rest) or text in rest for text in self.by_text):
                    found.add(rest)
        return found

    def _openings_but(self, kept: Collection[str]) -> re.Pattern[str] | None:
        if not self.by_text:
            return None
        signs = {text[0] for text in self.by_text if not text[0].isalnum()}
        words = [text for text in self.by_text if text[0].isalnum()]
        choices = [f"[{''.join(map(re.escape, sorted(signs)))}]"] if signs else []
        choices += [f"(?={re.escape(word)})." for word in words]
        unless = f"(?!{'|'.join(map(re.escape, sorted(kept)))})" if kept else ""
        return re.compile(f"{unless}(?:{'|'.join(choices)})", re.DOTALL)


class Guard:
    """The marks in one conversation. A mark stands after every character of a caller's at which a control could
    begin, and before a text that could end one."""

    def __init__(self, controls: ControlTokens, values: Sequence[Any]) -> None:
        """`values` is all that is going to be guarded. Raises TooDeep."""
        self._controls = controls
        texts = [text for value in values for text in _texts_in(value, 0)]
        self._mark, self._is_alone = _unused_mark(texts)
        self._traces = (self._mark, _escaped(self._mark))

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Copies of the messages, guarded."""
        return [{key: self._part(message, key) for key in message} for message in messages]

    def guarded(self, value: Any) -> Any:
        """A copy of any JSON value, with its texts and keys guarded."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._text(key): self.guarded(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guarded(item) for item in value]
        return value

    def _part(self, message: Mapping[str, Any], key: str) -> Any:
        value = message[key]
        if key == "role":  # templates spell control tokens around it: `<|` + role + `|>`
            return value if value in _ROLES else self.guarded(value)
        if isinstance(value, str) and message.get("role") == "assistant":
            return self._text(value, is_answer=True)
        return self.guarded(value)

    def without_marks(self, text: str) -> str:
        for trace in self._traces:
            text = text.replace(trace, "")
        return text

    def _text(self, text: str, *, is_answer: bool = False) -> str:
        if not self._is_alone:
            text = self.without_marks(text)
        openings = self._controls.openings(is_answer=is_answer)
        if openings is None:
            return text
        body = text.strip()
        marked = openings.sub(lambda match: match[0] + self._mark, text)
        if not self._controls.could_end(body):
            return marked
        start = len(text) - len(text.lstrip())  # white space stays outside, where the template can trim it
        return marked[:start] + self._mark + marked[start:]


def take_out_controls(definition: dict[str, Any]) -> list[ControlToken]:
    """Give every control token of a tokenizer definition an unguessable name, in place; return what they were.

    Their ids stay taken, so the others keep theirs; no text can spell them any more.
    """
    prefix = _NONCHARACTERS[0] + secrets.token_hex(8)
    model = definition["model"]
    controls = []
    names: dict[str, str] = {}
    for token in definition["added_tokens"]:
        text, token_id, is_hidden = token["content"], token["id"], token.get("special", False)
        if len(text) < 2 or not (is_hidden or _LOOKS_LIKE_CONTROL.fullmatch(text)) or _is_plain(text, is_hidden):
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
        model["merges"] = [merge for merge in model["merges"] if not _makes_one(merge, names)]
    return controls


def _is_plain(text: str, is_hidden: bool) -> bool:
    return not is_hidden and _HTML.fullmatch(text) is not None


def _makes_one(merge: str | list[str], names: Mapping[str, str]) -> bool:
    """Whether a merge of a BPE vocabulary has to do with a token that got another name."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names


def _any_of(controls: Sequence[ControlToken]) -> re.Pattern[str] | None:
    """Matches any of the controls where it stands, the longest first."""
    ordered = sorted(controls, key=lambda control: len(control.text), reverse=True)
    choices = [
        rf"(?<!\w){re.escape(control.text)}(?!\w)" if control.is_single_word else re.escape(control.text)
        for control in ordered
    ]
    return re.compile("|".join(choices)) if choices else None


def _letters(text: str) -> str:
    """What is left of a text when templates have changed its case and its signs."""
    return "".join(filter(str.isalnum, text)).casefold()


def _texts_in(value: Any, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise TooDeep
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts_in(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item, depth + 1)


def _unused_mark(texts: Sequence[str]) -> tuple[str, bool]:
    """A noncharacter that no text contains, as itself or escaped; if they contain all, the last, which they lose."""
    for candidate in _NONCHARACTERS:
        if not any(candidate in text or _escaped(candidate) in text for text in texts):
            return candidate, True
    return _NONCHARACTERS[-1], False


def _escaped(mark: str) -> str:
    """A mark as JSON and Python write it where they keep to ASCII."""
    return f"\\u{ord(mark):04x}"
