"""Incremental parser that splits a model's output into content and tool calls. The result does not depend on how the
text is split.

Content is passed on at once, except for text that may still become a call. Text that resembles a call but is none (an
unknown tool, or a call that the model broke off) is content, character by character; only white space around calls is
dropped. A call that is cut by the token limit is returned as far as it goes, if its tool is known. Each call is parsed
by the family's reader; `grammar.py` constrains the model to calls that this parser reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.text.detokenizer import start_of_partial
from engine.tool_calls.family import CallReader, Family, Tools

_MAX_UNENDED_CALLS = 8


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of call number `index`: first its name, then its arguments as JSON text in one or more pieces."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """A piece of the model's reasoning."""

    text: str


OutputPiece = str | ToolCallPiece | ReasoningPiece
_State = Literal["start", "text", "head", "call", "after"]


class CallParser:
    """Parses one output.

    `is_constrained`: a grammar allows only valid calls, name first, so arguments are passed on while they arrive, and
    any other object is JSON output. Otherwise a call is passed on when it is complete, so that text that turns out not
    to be a call can still be content. `is_parallel` False: the output is complete after its first call.
    """

    def __init__(self, family: Family, tools: Tools, *, is_constrained: bool, is_parallel: bool = True) -> None:
        self._family = family
        self._tools = tools
        self._is_held = is_constrained
        self._is_parallel = is_parallel
        self._state: _State = "start" if family.is_bare else "text"
        self._buffer = ""  # not parsed yet
        self._raw = ""  # parsed; content if the text is not a call
        self._reader: CallReader | None = None
        self._pieces: list[OutputPiece] = []
        self.num_calls = 0
        self.is_reasoning = False  # for `OutputParser`; reasoning is parsed before

    @property
    def is_complete(self) -> bool:
        """True if all text that follows is ignored."""
        return self.num_calls > 0 and not self._is_parallel

    def push(self, text: str) -> list[OutputPiece]:
        """Return the pieces that are certain now; none once the output is complete."""
        self._buffer += text
        while not self.is_complete and self._advance():
            pass
        return self._take()

    def flush(self, *, is_cut: bool = False) -> list[OutputPiece]:
        """Return the text held back, at the end of the output. `is_cut`: the token limit ended the output. After a few
        calls without an end the search for more stops, because each requires a scan of all text that follows."""
        num_unended = 0
        while not self.is_complete and (held_back := self._held_back()):
            num_unended += 1
            search_from = len(held_back) - len(held_back.lstrip()) + 1  # past the opening of this call
            next_call = held_back.find(self._family.opening, search_from) if num_unended < _MAX_UNENDED_CALLS else -1
            if next_call < 0:
                if not (is_cut and self._emit_partial_call()):
                    self._emit_text(held_back)
                break
            self._emit_text(held_back[:next_call])  # a call without an end may contain other calls
            self._restart(held_back[next_call:])
            while self._advance():
                pass
        return self._take()

    def _emit_partial_call(self) -> bool:
        """Emit the call that the limit cut. Returns False if the text is content. Under a grammar, the beginning of a
        call is never content, and nothing but calls follows the first call."""
        if self._state not in ("head", "call"):
            return self._is_held and self.num_calls > 0
        if self._reader is not None:
            self._emit_delta(self._reader)
        return self._is_held or (self._reader is not None and self._reader.is_name_sent)

    def _held_back(self) -> str:
        """Return the text held back that is content."""
        if self._state in ("head", "call"):
            if self._reader is None:
                return self._raw + self._buffer
            is_name_sent = self._reader.is_name_sent  # parts emitted as a call are not content
            return "" if is_name_sent else self._raw + self._reader.text + self._buffer
        text = self._buffer
        is_end = self._state == "after" and any(mark.startswith(text.strip()) for mark in self._marks_after)
        return "" if is_end or (self.num_calls and text.isspace()) else text

    @property
    def _marks_after(self) -> tuple[str, ...]:
        return (*self._family.ignored_marks, self._family.end_mark)

    def _advance(self) -> bool:
        """Advance to the next state. Returns True if there may be more to parse."""
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
        self._emit_text(content)
        if at < 0:
            self._buffer = self._buffer[len(content) :]
            return False
        self._raw = self._buffer[len(content) : at + len(opening)]
        self._buffer = self._buffer[at + len(opening) :]
        self._state = "head"
        return True

    def _in_head(self) -> bool:
        """Parse the text between the opening and the first call."""
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
            self._emit_delta(reader)
        if reader.is_rejected:
            return self._reject_call()
        if not reader.is_complete:
            return False
        if not reader.is_name_sent:
            call = None if self._is_held else reader.call()
            if call is None:
                return self._reject_call()
            self._pieces += [ToolCallPiece(self.num_calls, call[0], ""), ToolCallPiece(self.num_calls, None, call[1])]
        self.num_calls += 1
        self._reader, self._raw, self._state = None, "", "after"
        return True

    def _emit_delta(self, reader: CallReader) -> None:
        """Emit what is new of a text that must be a call."""
        name, arguments = reader.take_delta()
        if name is not None:
            self._pieces.append(ToolCallPiece(self.num_calls, name, ""))
        if arguments:
            self._pieces.append(ToolCallPiece(self.num_calls, None, arguments))

    def _after(self) -> bool:
        """Parse the text behind a call: another call, the end mark, or content."""
        family, begun = self._family, self._buffer.lstrip()
        if not begun:
            return False
        follows: list[tuple[str, _State]] = [(mark, "call") for mark in family.next_marks]
        follows += [(mark, "after") for mark in family.ignored_marks]
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

    def _reject_call(self) -> bool:
        """Emit text that resembled a call as content, unless parts of it were emitted as a call."""
        if self._reader is None:
            self._emit_text(self._raw)
        elif not self._reader.is_name_sent:
            self._emit_text(self._raw + self._reader.text)
        self._restart(self._buffer)
        return True

    def _set_aside(self, size: int) -> None:
        self._raw += self._buffer[:size]
        self._buffer = self._buffer[size:]

    def _restart(self, text: str) -> None:
        self._reader, self._raw, self._buffer, self._state = None, "", text, "text"

    def _emit_text(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def _take(self) -> list[OutputPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces
