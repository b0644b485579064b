"""An answer's text, piece by piece -> what is content and what is calls of tools. The same for any split of the text.

Content is given on as it comes, but for what could still become a call. A text that looks like a call and is none (of
no tool that was offered, or broken off by the model itself) is content, every character of it; only white space around
calls is dropped. A call that the token limit cut short is told as far as it goes, if its tool is known by then.
Knows text and a family's marks; one call is read by the family's own reader; `grammar.py` holds the model to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.tool_calls.family import CallReader, Family, Tools

_MAX_UNENDED = 8


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the call number `index`: first its name, then its arguments, as JSON text in one or more pieces."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of what the model thought before it answered."""

    text: str


Piece = str | CallPiece | Thought
_State = Literal["start", "text", "head", "call", "after"]


class CallParser:
    """Reads one answer.

    `is_held`: a grammar lets the model write only true calls, name first, so the arguments are given on as they come,
    and any other object is an answer in JSON. Otherwise a call is given when it is whole, so that what turns out to be
    none can still be content. `is_parallel` False: the answer is over with its first call.
    """

    def __init__(self, family: Family, tools: Tools, *, is_held: bool, is_parallel: bool = True) -> None:
        self._family = family
        self._tools = tools
        self._is_held = is_held
        self._is_parallel = is_parallel
        self._state: _State = "start" if family.is_bare else "text"
        self._buffer = ""  # not looked at yet, or not enough to tell
        self._raw = ""  # looked at, and content after all if this is no call
        self._reader: CallReader | None = None
        self._pieces: list[Piece] = []
        self.num_calls = 0
        self.is_thinking = False  # ever

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

    def flush(self, *, is_cut: bool = False) -> list[Piece]:
        """What was held back, when the answer has ended; `is_cut`: at the token limit. Behind the first few calls that
        never end, no more are looked for: each costs a look at all that follows it."""
        num_unended = 0
        while not self.is_over and (rest := self._unfinished()):
            num_unended += 1
            behind = len(rest) - len(rest.lstrip()) + 1  # the opening of this one
            again = rest.find(self._family.opening, behind) if num_unended < _MAX_UNENDED else -1
            if again < 0:
                if not (is_cut and self._tell_begun()):
                    self._say(rest)
                break
            self._say(rest[:again])  # a call that never ended may have swallowed others
            self._restart(rest[again:])
            while self._advance():
                pass
        return self._take()

    def _tell_begun(self) -> bool:
        """Tell the call that the limit cut short. Returns whether it is one: what a held model wrote of a call's
        beginning is no content, even where it names no tool yet, and nothing but calls follows its first."""
        if self._state not in ("head", "call"):
            return self._is_held and self.num_calls > 0
        if self._reader is not None:
            self._tell(self._reader)
        return self._is_held or (self._reader is not None and self._reader.is_said)

    def _unfinished(self) -> str:
        """The text that was held back, where it is content."""
        if self._state in ("head", "call"):
            if self._reader is None:
                return self._raw + self._buffer
            is_said = self._reader.is_said  # what was told of a call stays told
            return "" if is_said else self._raw + self._reader.text + self._buffer
        rest = self._buffer
        is_end = self._state == "after" and any(mark.startswith(rest.strip()) for mark in self._marks_after)
        return "" if is_end or (self.num_calls and rest.isspace()) else rest

    @property
    def _marks_after(self) -> tuple[str, ...]:
        return (*self._family.skips, self._family.end_mark)

    def _advance(self) -> bool:
        """Go on from one state to the next; whether there may be more to do."""
        step = {
            "start": self._in_start,
            "text": self._in_text,
            "head": self._in_head,
            "call": self._in_call,
            "after": self._after,
        }
        return step[self._state]()

    def _in_start(self) -> bool:
        begun = self._buffer.lstrip()
        if not begun or (begun != self._family.opening and self._family.opening.startswith(begun)):
            return False
        self._state = "head" if begun[0] == self._family.bare_begin else "text"
        return True

    def _in_text(self) -> bool:
        opening = self._family.opening
        at = self._buffer.find(opening)
        before = self._buffer[: at if at >= 0 else start_of_partial(self._buffer, opening)]
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
        """Between the opening and the first call."""
        head, begun = self._family.head.strip(), self._buffer.lstrip()
        if not begun or (begun != head and head.startswith(begun)):
            return False
        self._set_aside(len(self._buffer) - len(begun) + (len(head) if begun.startswith(head) else 0))
        self._state = "call"
        return True

    def _in_call(self) -> bool:
        if self._reader is None:
            begun = self._buffer.lstrip()
            self._set_aside(len(self._buffer) - len(begun))
            if not begun:
                return False
            self._reader = self._family.reader(self._tools)
        reader = self._reader
        size = reader.push(self._buffer)
        self._buffer = self._buffer[size:]
        if self._is_held:
            self._tell(reader)
        if reader.is_none:
            return self._is_no_call()
        if not reader.is_whole:
            return False
        if not reader.is_said:
            call = None if self._is_held else reader.call()
            if call is None:
                return self._is_no_call()
            self._pieces += [CallPiece(self.num_calls, call[0], ""), CallPiece(self.num_calls, None, call[1])]
        self.num_calls += 1
        self._reader, self._raw, self._state = None, "", "after"
        return True

    def _tell(self, reader: CallReader) -> None:
        """Say what is new of a call that is certain to be one."""
        name, arguments = reader.take_news()
        if name is not None:
            self._pieces.append(CallPiece(self.num_calls, name, ""))
        if arguments:
            self._pieces.append(CallPiece(self.num_calls, None, arguments))

    def _after(self) -> bool:
        """Behind a call: another one, the end mark, or text."""
        family, begun = self._family, self._buffer.lstrip()
        if not begun:
            return False
        follows: list[tuple[str, _State]] = [(mark, "call") for mark in family.next_marks]
        follows += [(mark, "after") for mark in family.skips]
        follows += [(family.end_mark, "text")] if family.end_mark else []
        for mark, state in follows:
            if begun.startswith(mark):
                self._raw = ""
                self._set_aside(len(self._buffer) - len(begun) + len(mark))
                self._state = state
                return True
        if any(mark.startswith(begun) for mark, _ in follows):
            return False
        self._raw = ""
        self._state = "call" if family.has_next_unmarked else "text"
        return True

    def _is_no_call(self) -> bool:
        """What looked like a call is content, unless it was told as one."""
        if self._reader is None:
            self._say(self._raw)
        elif not self._reader.is_said:
            self._say(self._raw + self._reader.text)
        self._restart(self._buffer)
        return True

    def _set_aside(self, size: int) -> None:
        self._raw += self._buffer[:size]
        self._buffer = self._buffer[size:]

    def _restart(self, text: str) -> None:
        self._reader, self._raw, self._buffer, self._state = None, "", text, "text"

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def start_of_partial(text: str, mark: str) -> int:
    """Where the longest end of `text` that could become `mark` starts; `len(text)` if there is none."""
    at = max(0, len(text) - len(mark) + 1)
    while (at := text.find(mark[0], at)) >= 0:
        if mark.startswith(text[at:]):
            return at
        at += 1
    return len(text)
