"""Python literals converted to JSON text incrementally, for models that write calls as Python.

Supports strings, numbers, True, False, None (and JSON's spellings), lists, tuples, and dicts with string keys. Nothing
is evaluated.
"""

from __future__ import annotations

import re

import msgspec

from engine.tool_calls.family import quoted

_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_HEX_SIZES = {"x": 2, "u": 4, "U": 8}
_CLOSES = {"[": "]", "(": ")", "{": "}"}
_PLAIN = re.compile(r"[^'\"\\\x00-\x1f\ud800-\udfff]+")
_MAX_DEPTH = 64


class PythonReader:
    """Reads one literal. It ends before the `,` or closing bracket at its own level, which is not consumed.

    `json` is the JSON text so far. `is_rejected`: the text is not such a literal.
    """

    def __init__(self) -> None:
        self.json = ""
        self.is_complete = False
        self.is_rejected = False
        self._open: list[str] = []
        self._has_value = False  # a value was read at the current position
        self._comma = ""  # a comma that is not written yet, because it may be a trailing one
        self._word = ""
        self._quote = ""
        self._escape = ""
        self._high = ""  # first half of a surrogate pair

    def push(self, text: str) -> int:
        """Consume the characters of the literal and return their number."""
        at = 0
        while at < len(text) and not (self.is_complete or self.is_rejected):
            at += self._in_string(text, at) if self._quote else self._outside(text, at)
        return at

    def _in_string(self, text: str, at: int) -> int:
        character = text[at]
        if self._escape:
            self._escape += character
            self._unescape()
            return 1
        plain = _PLAIN.match(text, at)
        if plain is not None:
            self._append_text(plain[0])
            return len(plain[0])
        if character == self._quote:
            self._flush_high()
            self._quote = ""
            self.json += '"'
        elif character == "\\":
            self._escape = "\\"
        else:
            self._append_text(character)
        return 1

    def _unescape(self) -> None:
        kind = self._escape[1]
        size = _HEX_SIZES.get(kind)
        if size is None:
            self._append_text({"\n": ""}.get(kind, _ESCAPES.get(kind, kind if kind in "'\"\\/" else "\\" + kind)))
        elif len(self._escape) == 2 + size:
            try:
                code = int(self._escape[2:], 16)
                self._append_code_point(code)
            except ValueError:
                self.is_rejected = True
        else:
            return
        self._escape = ""

    def _append_code_point(self, code: int) -> None:
        if 0xD800 <= code < 0xDC00:
            self._flush_high()
            self._high = chr(code)
        elif 0xDC00 <= code < 0xE000 and self._high:
            high, self._high = self._high, ""
            self._append_text(chr(0x10000 + ((ord(high) - 0xD800) << 10) + code - 0xDC00))
        else:
            self._append_text("\ufffd" if 0xD800 <= code < 0xE000 else chr(code))

    def _flush_high(self) -> None:
        if self._high:
            self._high = ""
            self._append_text("\ufffd")

    def _append_text(self, text: str) -> None:
        self._flush_high()
        self.json += quoted(text)[1:-1]

    def _outside(self, text: str, at: int) -> int:
        character = text[at]
        word = _WORD.match(text, at)
        if word is not None:
            self._begin_value(is_word=True)
            if self.is_rejected:
                return 0
            self._word += word[0]
            return len(word[0])
        if self._word:
            self._end_word()
            return 0
        if character in ",)]}" and not self._open:
            self.is_complete = self._has_value
            self.is_rejected = not self._has_value
            return 0
        if character in " \t\r\n":
            return 1
        self._sign(character)
        return 0 if self.is_rejected else 1

    def _sign(self, character: str) -> None:
        if character in "\"'":
            self._begin_value()
            self._quote = character
            self.json += '"'
        elif character in _CLOSES:
            self._begin_value()
            self.is_rejected = self.is_rejected or len(self._open) >= _MAX_DEPTH
            self._open.append(character)
            self._has_value = False
            self.json += "{" if character == "{" else "["
        elif self._open and character == _CLOSES[self._open[-1]]:
            self.json += "}" if self._open.pop() == "{" else "]"
            self._comma, self._has_value = "", True
        elif character == "," and self._open and self._has_value:
            self._comma, self._has_value = ", ", False
        elif character == ":" and self._open and self._open[-1] == "{" and self._has_value:
            self.json += ": "
            self._has_value = False
        else:
            self.is_rejected = True

    def _begin_value(self, *, is_word: bool = False) -> None:
        if is_word and self._word:
            return
        if self._has_value:
            self.is_rejected = True
            return
        self.json += self._comma
        self._comma, self._has_value = "", True

    def _end_word(self) -> None:
        word, self._word = self._word, ""
        spelled = _WORDS.get(word, word if _NUMBER.fullmatch(word) else None)
        self.is_rejected = self.is_rejected or spelled is None
        self.json += spelled or ""


def json_of_python(text: str) -> str | None:
    """Return the JSON text of a complete literal; None if `text` is not a literal."""
    reader = PythonReader()
    if reader.push(text + ",") != len(text) or not reader.is_complete:
        return None
    try:
        msgspec.json.decode(reader.json)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return reader.json
