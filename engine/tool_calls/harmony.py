"""Harmony, the output format of gpt-oss: messages on channels, each with a header and an end mark.

    <|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>the response<|return|>
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

`HarmonyParser` parses an output; `harmony_rules` constrains an output to calls or to an output format. The model calls
one tool per turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from engine.text.detokenizer import start_of_partial
from engine.tool_calls.call_parser import OutputPiece, ReasoningPiece, ToolCallPiece
from engine.tool_calls.family import NAME, CallReader, Family, RuleWriter, Tools
from engine.tool_calls.free_text import containing, text_until, text_without, with_control_tokens
from engine.tool_calls.json_scanner import JsonScanner

CHANNEL, MESSAGE, CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
START, END, CALL, RETURN = "<|start|>", "<|end|>", "<|call|>", "<|return|>"
MARKS = (CHANNEL, MESSAGE, CONSTRAIN, START, END, CALL, RETURN)

Shown = Literal["calls", "text or calls", "format or calls", "format"]

_STARTS: dict[Shown, str] = {
    "calls": "analysis? calls",
    "text or calls": "(analysis | preamble)* (final | calls)",
    "format or calls": "analysis? (final | calls)",
    "format": "analysis? final",
}
_ENDS = (END, CALL, RETURN, START)
_BEGINNINGS = (START, CHANNEL, MESSAGE, "to=functions.")
_MAX_HEADER_CHARS = 512
_RECIPIENT = re.compile(rf"\bto=functions\.({NAME})")


@dataclass(frozen=True, kw_only=True)
class HarmonyCalls(Family):
    """The harmony family. Parsed by `HarmonyParser` instead of a `CallReader`, because every part of the output has
    marks."""

    def reader(self, tools: Tools) -> CallReader:  # noqa: ARG002
        raise AssertionError("harmony is parsed by HarmonyParser")

    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        spell = writer.literal
        usual = spell(f"{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}")
        other = spell(f" to=functions.{name}{CHANNEL}commentary json{MESSAGE}")
        return [f"call_{index}: ({usual} | {other}) arguments_{index}", f"arguments_{index}: {writer.json(schema)}"]


HARMONY = HarmonyCalls(name="harmony", opening="", between="", inner_marks=MARKS)


class HarmonyParser:
    """Parses one output; see `CallParser` for `is_constrained` and `is_parallel`. A message to an unknown tool, or
    whose arguments are not an object, is content."""

    def __init__(self, tools: Tools, *, is_constrained: bool, is_parallel: bool = False) -> None:
        self._tools = tools
        self._is_held = is_constrained
        self._is_parallel = is_parallel
        self._state: Literal["header", "body"] = "header"
        self._buffer = ""
        self._kind: Literal["reasoning", "content", "call"] = "content"
        self._name = ""
        self._raw = ""  # body of the current call
        self._num_argument_chars = 0
        self._scanner = JsonScanner()
        self._is_named = False  # the name of the call was emitted
        self._is_first = True  # no text of this message was emitted
        self._is_called = False  # the message is a complete call
        self._earlier_kinds: set[str] = set()  # kinds of earlier messages
        self._pieces: list[OutputPiece] = []
        self.num_calls = 0

    @property
    def is_complete(self) -> bool:
        return self.num_calls > 0 and not self._is_parallel

    @property
    def is_reasoning(self) -> bool:
        return self._state == "body" and self._kind == "reasoning"

    def push(self, text: str) -> list[OutputPiece]:
        self._buffer += text
        while not self.is_complete and self._advance():
            pass
        return self._take()

    def flush(self, *, is_cut: bool = False) -> list[OutputPiece]:
        if not self.is_complete:
            if self._state == "body":
                is_begun = is_cut and self._kind == "call"
                self._read(self._buffer, is_last=not is_begun)
                if is_begun:
                    self._emit_partial_call()
            elif self._buffer.strip() and not any(mark in self._buffer for mark in MARKS):
                self._emit_text(self._buffer)
            self._buffer = ""
        return self._take()

    def _advance(self) -> bool:
        return self._in_body() if self._state == "body" else self._in_header()

    def _in_header(self) -> bool:
        begun = self._buffer.lstrip()
        if not begun:
            return False
        if begun.startswith(_ENDS[:3]):  # end marks of the previous message
            ended = next(mark for mark in _ENDS if begun.startswith(mark))
            self._buffer = begun[len(ended) :]
            return True
        known = (*_BEGINNINGS, *_ENDS)
        if not begun.startswith(known):
            if any(mark.startswith(begun) for mark in known):
                return False
            self._open("content", "")  # content without a header
            return True
        at = self._buffer.find(MESSAGE)
        if at < 0 or at > _MAX_HEADER_CHARS:
            if len(self._buffer) <= _MAX_HEADER_CHARS + len(MESSAGE):
                return False
            self._open("content", "")
            return True
        self._open_by(self._buffer[:at])
        self._buffer = self._buffer[at + len(MESSAGE) :]
        return True

    def _open_by(self, header: str) -> None:
        channel = header.partition(CHANNEL)[2].split()[:1]
        recipient = _RECIPIENT.search(header)
        if recipient is not None and recipient[1] in self._tools:
            self._open("call", recipient[1])
        else:
            is_reasoning = bool(channel) and channel[0].startswith("analysis")
            self._open("reasoning" if is_reasoning else "content", "")

    def _open(self, kind: Literal["reasoning", "content", "call"], name: str) -> None:
        self._state, self._kind, self._name = "body", kind, name
        self._raw, self._num_argument_chars, self._scanner = "", 0, JsonScanner()
        self._is_named, self._is_first, self._is_called = False, True, False

    def _in_body(self) -> bool:
        found = [(at, mark) for mark in _ENDS if (at := self._buffer.find(mark)) >= 0]
        if not found:
            size = min(start_of_partial(self._buffer, mark) for mark in _ENDS)
            self._read(self._buffer[:size], is_last=False)
            self._buffer = self._buffer[size:]
            return False
        at, mark = min(found)
        self._read(self._buffer[:at], is_last=True)
        self._earlier_kinds.add(self._kind)
        self._buffer = self._buffer[at + (len(mark) if mark != START else 0) :]
        self._state = "header"
        return True

    def _read(self, text: str, *, is_last: bool) -> None:
        """Parse a part of a message's body."""
        if self._kind == "call":
            self._read_call(text, is_last=is_last)
            return
        if self._is_first and text:
            self._is_first = False
            text = "\n" * (self._kind in self._earlier_kinds) + text
        if text:
            self._emit_text(text)

    def _emit_text(self, text: str) -> None:
        self._pieces.append(ReasoningPiece(text) if self._kind == "reasoning" else text)

    def _read_call(self, text: str, *, is_last: bool) -> None:
        before = self._num_argument_chars
        if not self._scanner.is_closed:
            self._num_argument_chars += self._scanner.scan(text)
        self._raw += text
        if self._is_held and self._num_argument_chars > before:
            self._emit_delta(self._raw[before : self._num_argument_chars])
        if self._scanner.is_closed and not self._is_called:
            arguments = self._raw[: self._num_argument_chars].strip()
            self._is_called = self._is_held or _is_object(arguments)
            if self._is_called and not self._is_held:
                self._emit_delta(arguments)
            self.num_calls += self._is_called
        if is_last and not (self._is_held or self._is_called) and self._raw:
            self._emit_text(self._raw)

    def _emit_partial_call(self) -> None:
        """Emit the call that the token limit cut as far as it goes, as content if its body begins no object."""
        if self._is_called:
            return
        if self._is_held:
            self._emit_delta("")
        elif not self._scanner.is_closed and self._raw.lstrip()[:1] in ("", "{"):
            self._emit_delta(self._raw)
        else:
            self._emit_text(self._raw)

    def _emit_delta(self, arguments: str) -> None:
        index = self.num_calls
        if not self._is_named:
            self._is_named = True
            self._pieces.append(ToolCallPiece(index, self._name, ""))
            arguments = arguments.lstrip()
        if arguments:
            self._pieces.append(ToolCallPiece(index, None, arguments))

    def _take(self) -> list[OutputPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False


def harmony_rules(controls: Mapping[str, int], shows: Shown) -> str:
    """Return the rules of an output's messages: reasoning first, then the rules `calls` or `formatted`, or any text."""

    def other(rule: str, channel: str) -> str:
        begin = with_control_tokens(f"{CHANNEL}{channel}{MESSAGE}", MARKS, controls)
        next_one = with_control_tokens(f"{START}assistant", MARKS, controls)
        return f"{rule}: {begin} {rule}_text {next_one}\n" + text_until(f"{rule}_text", END, MARKS, controls)

    rules = f"start: {_STARTS[shows]}\n" + other("analysis", "analysis")
    if shows == "text or calls":
        rules += other("preamble", "commentary")
        rules += text_without("words", " & ~".join(map(containing, MARKS)))
    if shows != "calls":
        body = "words" if shows == "text or calls" else "formatted"
        rules += f"final: {with_control_tokens(f'{CHANNEL}final{MESSAGE}', MARKS, controls)} {body}\n"
    return rules
