"""Base class of readers for calls whose arguments come one by one, with their names. Assembles the arguments as JSON
while they are read.

A subclass parses the syntax.
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
        self._arguments = ""  # JSON of the complete arguments
        self._state = ""  # the element that the subclass expects next
        self._keys: set[str] = set()
        self._num_sent = 0

    def push(self, text: str) -> int:
        """Read `text` and return how many characters were consumed. The rest must be pushed again, with more text."""
        at = 0
        while not (self.is_complete or self.is_rejected):
            state = self._state
            size = self._step(text[at:])
            at += size
            if not size and state == self._state:
                break
        self.text += text[:at]
        return at

    def take_delta(self) -> tuple[str | None, str]:
        """Return the name, once, and the arguments that were not returned before."""
        if not self._name:
            return None, ""
        name = None if self.is_name_sent else self._name
        self.is_name_sent = True
        delta, self._num_sent = self._arguments[self._num_sent :], len(self._arguments)
        return name, delta

    def call(self) -> tuple[str, str] | None:
        """Return name and arguments of a complete call; None if the arguments are not valid JSON."""
        try:
            msgspec.json.decode(self._arguments)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None
        return self._name, self._arguments

    def _enter(self, name: str) -> bool:
        """Set the call's name. Returns False, and rejects the call, if no tool has this name."""
        self._name = name if name in self._tools else ""
        self.is_rejected = not self._name
        return not self.is_rejected

    @abstractmethod
    def _step(self, text: str) -> int:
        """Parse the next part of `text` according to `_state`. Returns the number of characters consumed; 0 with an
        unchanged state if more text is needed."""
