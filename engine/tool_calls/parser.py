"""An answer's text, piece by piece -> what is content and what is calls of tools. The same for any split of the text.

Content is given on as it comes, but for what could still become a call. A text that looks like a call and is none (no
JSON, a tool that nobody offered) is content, every character of it; only white space around calls is dropped. Knows
text and a family's marks; who holds the model to them is `grammar.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from engine.tool_calls.families import Family

_HEADER = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]{0,128})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_FIRST_FIELD = re.compile(r'\{\s{0,64}"([^"]{11}|[^"]*")')  # as much of its name as tells whether it is a call's
_FIELDS_OF_A_CALL = {'name"', 'arguments"', 'parameters"', 'type"', 'id"'}
_MAX_UNENDED = 8
_NOT_IN_STRING = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the call number `index`: first its name, then its arguments, as JSON text in one or more pieces."""

    index: int
    name: str | None
    arguments: str


Piece = str | CallPiece
_State = Literal["start", "text", "head", "object", "after"]


class CallParser:
    """Reads one answer.

    `is_held`: a grammar lets the model write only true calls, name first, so the arguments are given on as they come,
    and any other object is an answer in JSON. Otherwise a call is given when it is whole, so that what turns out to be
    none can still be content. `is_parallel` False: the answer is over with its first call.
    """

    def __init__(self, family: Family, tools: Collection[str], *, is_held: bool, is_parallel: bool = True) -> None:
        self._family = family
        self._tools = tools
        self._is_held = is_held
        self._is_parallel = is_parallel
        self._state: _State = "start" if family.is_bare else "text"
        self._buffer = ""  # not looked at yet, or not enough to tell
        self._raw = ""  # looked at, and content after all if this is no call
        self._object: _Object | None = None
        self._pieces: list[Piece] = []
        self.num_calls = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows is wanted."""
        return self.num_calls > 0 and not self._is_parallel

    def push(self, text: str) -> list[Piece]:
        """What is now certain. Nothing once the answer is over."""
        self._buffer += text
        while not self.is_over and self._advance():
            pass
        return self._take()

    def flush(self) -> list[Piece]:
        """What was held back, when the answer has ended. Behind the first few calls that never end, no more are looked
        for: each costs a look at all that follows it."""
        num_unended = 0
        while not self.is_over and (rest := self._unfinished()):
            num_unended += 1
            again = rest.find(self._family.opening, 1) if num_unended < _MAX_UNENDED else -1
            if again < 0:
                self._say(rest)
                break
            self._say(rest[:again])  # a call that never ended may have swallowed others
            self._restart(rest[again:])
            while self._advance():
                pass
        return self._take()

    def _unfinished(self) -> str:
        """The text that was held back, where it is content."""
        if self._state in ("head", "object"):
            if self._object is None:
                return self._raw + self._buffer
            return "" if self._object.is_said else self._raw + self._object.text  # what was told of a call stays told
        rest = self._buffer
        is_end = self._state == "after" and self._family.end_mark.startswith(rest.strip())
        return "" if is_end or (self.num_calls and rest.isspace()) else rest

    def _advance(self) -> bool:
        """Go on from one state to the next; whether there may be more to do."""
        step = {
            "start": self._in_start,
            "text": self._in_text,
            "head": self._in_head,
            "object": self._in_object,
            "after": self._after,
        }
        return step[self._state]()

    def _in_start(self) -> bool:
        begun = self._buffer.lstrip()
        if not begun or (begun != self._family.opening and self._family.opening.startswith(begun)):
            return False
        self._state = "head" if begun[0] == "{" else "text"
        return True

    def _in_text(self) -> bool:
        opening = self._family.opening
        at = self._buffer.find(opening)
        before = self._buffer[: at if at >= 0 else _start_of_partial(self._buffer, opening)]
        content = before.rstrip()
        self._say(content)
        if at < 0:
            self._buffer = self._buffer[len(content) :]
            return False
        self._raw = self._buffer[len(content) : at + len(opening)]
        self._buffer = self._buffer[at + len(opening) :]
        self._state = "head"
        return True

    def _in_head(self) -> bool:
        begun = self._buffer.lstrip()
        if not begun:
            return False
        size = len(self._buffer) - len(begun)
        if begun[0] == self._family.head and self._raw.count("[") == self._family.opening.count("["):
            size += 1
        elif begun[0] != "{":
            return self._is_no_call()
        self._raw += self._buffer[:size]
        self._buffer = self._buffer[size:]
        if begun[0] == "{":
            self._object, self._state = _Object(), "object"
        return True

    def _in_object(self) -> bool:
        current = self._object
        assert current is not None
        size = current.push(self._buffer)
        self._buffer = self._buffer[size:]
        if self._is_held:
            self._tell(current)
        if not current.is_whole:
            first = None if current.is_said else _FIRST_FIELD.match(current.text)
            return first is not None and first[1] not in _FIELDS_OF_A_CALL and self._is_no_call()
        if not current.is_said:
            call = None if self._is_held else _whole_call(current.text, self._tools)
            if call is None:
                return self._is_no_call()
            self._pieces += [CallPiece(self.num_calls, call[0], ""), CallPiece(self.num_calls, None, call[1])]
        self.num_calls += 1
        self._object, self._raw, self._state = None, "", "after"
        return True

    def _tell(self, current: _Object) -> None:
        """Say what is new of a call that is certain to be one."""
        name, arguments = current.take_news(self._tools)
        if name is not None:
            self._pieces.append(CallPiece(self.num_calls, name, ""))
        if arguments:
            self._pieces.append(CallPiece(self.num_calls, None, arguments))

    def _after(self) -> bool:
        """Behind a call: another one, the end mark, or text."""
        family, begun = self._family, self._buffer.lstrip()
        if not begun:
            return False
        follows: tuple[tuple[str, _State], ...] = ((family.next_mark, "head"), (family.end_mark, "text"))
        for mark, state in follows:
            if mark and begun.startswith(mark):
                size = len(self._buffer) - len(begun) + len(mark)
                self._raw, self._buffer = self._buffer[:size], self._buffer[size:]
                self._state = state
                return True
            if mark and mark.startswith(begun):
                return False
        self._state = "text"
        return True

    def _is_no_call(self) -> bool:
        """What looked like a call is content."""
        self._say(self._raw + (self._object.text if self._object is not None else ""))
        self._restart(self._buffer)
        return True

    def _restart(self, text: str) -> None:
        self._object, self._raw, self._buffer, self._state = None, "", text, "text"

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


class _Object:
    """A JSON object that arrives in pieces: where it ends, and what can be said of it as a call before it does."""

    def __init__(self) -> None:
        self.text = ""
        self.is_whole = False
        self.is_said = False
        self._scanner = _Scanner()
        self._arguments = _Scanner()
        self._told = 0  # up to where the arguments were told

    def push(self, text: str) -> int:
        """Take what belongs to the object; returns how many characters."""
        size = self._scanner.scan(text)
        self.is_whole = self._scanner.is_closed
        self.text += text[:size]
        return size

    def take_news(self, tools: Collection[str]) -> tuple[str | None, str]:
        """The name when it has just become known to be one of `tools`, and the new part of the arguments."""
        name = None
        if not self.is_said:
            header = _HEADER.match(self.text)
            if header is None or header[1] not in tools:
                return None, ""
            self.is_said, self._told, name = True, header.end(), header[1]
        if self._arguments.is_closed:
            return name, ""
        size = self._arguments.scan(self.text[self._told :])
        arguments = self.text[self._told : self._told + size]
        self._told += size
        return name, arguments


class _Scanner:
    """Finds the end of the JSON object or list that a text begins with, across pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self.is_closed = False

    def scan(self, text: str) -> int:
        """How many characters belong to the value."""
        at = 0
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._is_in_string else _NOT_IN_STRING).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            character = found[0]
            if character == '"':
                self._is_in_string = not self._is_in_string
            elif character == "\\":
                self._is_escaped = True
            else:
                self._depth += 1 if character in "{[" else -1
                if self._depth <= 0:
                    self.is_closed = True
                    return at
        return len(text)


def _whole_call(text: str, tools: Collection[str]) -> tuple[str, str] | None:
    """Name and arguments of the call that `text` is; None when it is none of one of `tools`."""
    try:
        call: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict):
        return None
    header = _HEADER.match(text)
    if header is None:
        return name, msgspec.json.encode(arguments).decode()
    return name, text[header.end() : header.end() + _Scanner().scan(text[header.end() :])]


def _start_of_partial(text: str, mark: str) -> int:
    """Where the longest end of `text` that could become `mark` starts; `len(text)` if there is none."""
    at = max(0, len(text) - len(mark) + 1)
    while (at := text.find(mark[0], at)) >= 0:
        if mark.startswith(text[at:]):
            return at
        at += 1
    return len(text)
