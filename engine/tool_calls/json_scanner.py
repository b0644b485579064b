"""Detection of the end of a JSON object or list that arrives in pieces, before it is parsed."""

from __future__ import annotations

import re

_NOT_IN_STRING = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class JsonScanner:
    """Finds the end of the JSON object or list with which a text begins."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self.is_closed = False

    def scan(self, text: str) -> int:
        """Return the number of characters that belong to the value."""
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
