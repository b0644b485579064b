"""What reads a call whose arguments come one by one, and puts them together as JSON while they do.

The base of readers for syntaxes with a name first and named arguments after it. Knows no syntax: a subclass says what
the next piece of text is.
"""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from engine.tool_calls.family import CallReader, Tools


class ArgumentReader(CallReader):
    """See `engine.tool_calls.family.CallReader`."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._name = ""
        self._arguments = ""  # JSON, as far as whole arguments have come
        self._state = ""  # where in the syntax the next text stands
        self._keys: set[str] = set()
        self._told = 0

    def push(self, text: str) -> int:
        """Read on. Returns how much of `text` was taken; what was not must come again, with more after it."""
        at = 0
        while not (self.is_whole or self.is_none):
            state = self._state
            size = self._step(text[at:])
            at += size
            if not size and state == self._state:
                break
        self.text += text[:at]
        return at

    def take_news(self) -> tuple[str | None, str]:
        """The name, once, and what of the arguments was not told yet."""
        if not self._name:
            return None, ""
        name = None if self.is_said else self._name
        self.is_said = True
        told = self._arguments + self._begun()
        news, self._told = told[self._told :], len(told)
        return name, news

    def call(self) -> tuple[str, str] | None:
        """Name and arguments of a whole call; None where these are none that JSON has."""
        try:
            msgspec.json.decode(self._arguments)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None
        return self._name, self._arguments

    def _enter(self, name: str) -> bool:
        """The name has come. Returns whether a tool has it: else this is no call."""
        self._name = name if name in self._tools else ""
        self.is_none = not self._name
        return not self.is_none

    def _begun(self) -> str:
        """What can be told already of an argument that is not whole."""
        return ""

    @abstractmethod
    def _step(self, text: str) -> int:
        """Read what comes next in `text`, as `_state` says. Returns how much of it was read; nothing, and the same
        state, if more has to come."""
