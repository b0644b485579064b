"""Harmony, in which gpt-oss answers: messages on channels, each from a header to a mark that ends it.

    <|channel|>analysis<|message|>a thought<|end|><|start|>assistant<|channel|>final<|message|>the answer<|return|>
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

`HarmonyParser` reads an answer, whatever it consists of; `harmony_rules` hold one to calls or to a format. The model
calls one tool a turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from engine.tool_calls.family import NAME, CallReader, Family, RuleWriter, Tools
from engine.tool_calls.free_text import holding, spelled, text_until, text_without
from engine.tool_calls.json_scanner import JsonScanner
from engine.tool_calls.call_parser import CallPiece, Piece, Thought, start_of_partial

CHANNEL, MESSAGE, CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
START, END, CALL, RETURN = "<|start|>", "<|end|>", "<|call|>", "<|return|>"
MARKS = (CHANNEL, MESSAGE, CONSTRAIN, START, END, CALL, RETURN)

Shown = Literal["calls", "text or calls", "answer or calls", "answer"]

_STARTS: dict[Shown, str] = {
    "calls": "analysis? calls",
    "text or calls": "(analysis | preamble)* (final | calls)",
    "answer or calls": "analysis? (final | calls)",
    "answer": "analysis? final",
}
_ENDS = (END, CALL, RETURN, START)
_BEGINNINGS = (START, CHANNEL, MESSAGE, "to=functions.")
_MAX_HEADER_CHARS = 512
_RECIPIENT = re.compile(rf"\bto=functions\.({NAME})")


@dataclass(frozen=True, kw_only=True)
class HarmonyCalls(Family):
    """The family; who reads it is `HarmonyParser`, since not calls alone stand between marks."""

    def reader(self, tools: Tools) -> CallReader:  # noqa: ARG002
        raise AssertionError("harmony is read by messages")

    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        spell = writer.literal
        usual = spell(f"{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}")
        other = spell(f" to=functions.{name}{CHANNEL}commentary json{MESSAGE}")
        return [f"call_{index}: ({usual} | {other}) arguments_{index}", f"arguments_{index}: {writer.json(schema)}"]


HARMONY = HarmonyCalls(name="harmony", opening="", between="", inner_marks=MARKS)


class HarmonyParser:
    """Reads one answer; see `CallParser` for `is_held` and `is_parallel`. A message to a tool that nobody offered, or
    whose arguments are no object, is content."""

    def __init__(self, tools: Tools, *, is_held: bool, is_parallel: bool = False) -> None:
        self._tools = tools
        self._is_held = is_held
        self._is_parallel = is_parallel
        self._state: Literal["header", "body"] = "header"
        self._buffer = ""
        self._kind: Literal["thought", "content", "call"] = "content"
        self._name = ""
        self._raw = ""  # of the message to a tool that is being read
        self._num_argument_chars = 0
        self._scanner = JsonScanner()
        self._is_named = False  # whether the call's name was told
        self._is_first = True  # whether nothing has come of this message
        self._is_called = False  # whether it was a whole call
        self._told: set[str] = set()  # kinds of messages that came before this
        self._pieces: list[Piece] = []
        self.num_calls = 0

    @property
    def is_over(self) -> bool:
        return self.num_calls > 0 and not self._is_parallel

    @property
    def is_thinking(self) -> bool:
        return self._state == "body" and self._kind == "thought"

    def push(self, text: str) -> list[Piece]:
        self._buffer += text
        while not self.is_over and self._advance():
            pass
        return self._take()

    def flush(self, *, is_cut: bool = False) -> list[Piece]:
        if not self.is_over:
            if self._state == "body":
                is_begun = is_cut and self._kind == "call"
                self._read(self._buffer, is_last=not is_begun)
                if is_begun:
                    self._tell_begun()
            elif self._buffer.strip() and not any(mark in self._buffer for mark in MARKS):
                self._say(self._buffer)
            self._buffer = ""
        return self._take()

    def _advance(self) -> bool:
        return self._in_body() if self._state == "body" else self._in_header()

    def _in_header(self) -> bool:
        begun = self._buffer.lstrip()
        if not begun:
            return False
        if begun.startswith(_ENDS[:3]):  # of a message that is over
            ended = next(mark for mark in _ENDS if begun.startswith(mark))
            self._buffer = begun[len(ended) :]
            return True
        known = (*_BEGINNINGS, *_ENDS)
        if not begun.startswith(known):
            if any(mark.startswith(begun) for mark in known):
                return False
            self._open("content", "")  # a text without a header
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
            is_thought = bool(channel) and channel[0].startswith("analysis")
            self._open("thought" if is_thought else "content", "")

    def _open(self, kind: Literal["thought", "content", "call"], name: str) -> None:
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
        self._told.add(self._kind)
        self._buffer = self._buffer[at + (len(mark) if mark != START else 0) :]
        self._state = "header"
        return True

    def _read(self, text: str, *, is_last: bool) -> None:
        """A part of a message's body."""
        if self._kind == "call":
            self._read_call(text, is_last=is_last)
            return
        if self._is_first and text:
            self._is_first = False
            text = "\n" * (self._kind in self._told) + text
        if text:
            self._say(text)

    def _say(self, text: str) -> None:
        self._pieces.append(Thought(text) if self._kind == "thought" else text)

    def _read_call(self, text: str, *, is_last: bool) -> None:
        before = self._num_argument_chars
        if not self._scanner.is_closed:
            self._num_argument_chars += self._scanner.scan(text)
        self._raw += text
        if self._is_held and self._num_argument_chars > before:
            self._tell(self._raw[before : self._num_argument_chars])
        if self._scanner.is_closed and not self._is_called:
            arguments = self._raw[: self._num_argument_chars].strip()
            self._is_called = self._is_held or _is_object(arguments)
            if self._is_called and not self._is_held:
                self._tell(arguments)
            self.num_calls += self._is_called
        if is_last and not (self._is_held or self._is_called) and self._raw:
            self._say(self._raw)

    def _tell_begun(self) -> None:
        """A call that the token limit cut short, as far as it goes; content where it does not begin as one."""
        if self._is_called:
            return
        if self._is_held:
            self._tell("")
        elif not self._scanner.is_closed and self._raw.lstrip()[:1] in ("", "{"):
            self._tell(self._raw)
        else:
            self._say(self._raw)

    def _tell(self, arguments: str) -> None:
        index = self.num_calls
        if not self._is_named:
            self._is_named = True
            self._pieces.append(CallPiece(index, self._name, ""))
            arguments = arguments.lstrip()
        if arguments:
            self._pieces.append(CallPiece(index, None, arguments))

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False


def harmony_rules(controls: Mapping[str, int], shows: Shown) -> str:
    """The messages of an answer: thoughts first, then the rules `calls` or `answer`, or any text."""

    def other(rule: str, channel: str) -> str:
        begin = spelled(f"{CHANNEL}{channel}{MESSAGE}", MARKS, controls)
        next_one = spelled(f"{START}assistant", MARKS, controls)
        return f"{rule}: {begin} {rule}_text {next_one}\n" + text_until(f"{rule}_text", END, MARKS, controls)

    rules = f"start: {_STARTS[shows]}\n" + other("analysis", "analysis")
    if shows == "text or calls":
        rules += other("preamble", "commentary")
        rules += text_without("words", " & ~".join(map(holding, MARKS)))
    if shows != "calls":
        body = "words" if shows == "text or calls" else "answer"
        rules += f"final: {spelled(f'{CHANNEL}final{MESSAGE}', MARKS, controls)} {body}\n"
    return rules
