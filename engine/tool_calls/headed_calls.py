"""Calls with a header before the JSON arguments: `name[ARGS]{…}`. The syntax of newer Mistral models, DeepSeek, Kimi
and others, each with its own marks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from engine.tool_calls.family import NAME, CallReader, Family, RuleWriter, Tools, quoted
from engine.tool_calls.json_scanner import JsonScanner

_SPACE = r"\s{0,8}"
_PLACES = re.compile(r"(\{name\}|\{numbered\}|\{id\}|\s+)")
_READ_AS = {"{name}": NAME, "{numbered}": r"[A-Za-z0-9_.:/-]{1,134}", "{id}": r"[A-Za-z0-9_-]{1,64}"}
_NAMED = ("{name}", "{numbered}")


@dataclass(frozen=True, kw_only=True)
class HeadedCalls(Family):
    """`headers`: the forms of a header, the usual one first, with placeholders `{name}`, `{id}` and `{numbered}` (the
    name followed by the call's number)."""

    headers: tuple[str, ...]

    @cached_property
    def whole_headers(self) -> re.Pattern[str]:
        """Pattern of a complete header before the arguments; one group is the name."""
        return re.compile("|".join(f"(?:{_whole(header)})(?=\\{{)" for header in self.headers))

    @cached_property
    def begun_headers(self) -> tuple[re.Pattern[str], ...]:
        """Patterns that match the longest prefix of a text that may begin a header, one per form."""
        return tuple(re.compile(_begun(header)) for header in self.headers)

    def reader(self, tools: Tools) -> HeadedReader:
        return HeadedReader(self, tools)

    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        known = [
            header
            for header in self.headers[1:]
            if all(mark in writer.controls for mark in self.inner_marks if mark in header)
        ]
        heads = " | ".join(_written(header, name, writer) for header in (self.headers[0], *known))
        return [f"call_{index}: ({heads}) arguments_{index}", f"arguments_{index}: {writer.json(schema)}"]


class HeadedReader(CallReader):
    """Reads a header and an object."""

    def __init__(self, family: HeadedCalls, tools: Tools) -> None:
        super().__init__(tools)
        self._family = family
        self._name = ""
        self._scanner = JsonScanner()
        self._begin = 0  # offset of the arguments
        self._num_sent = 0  # characters of the arguments returned by `take_delta`

    def push(self, text: str) -> int:
        size = 0
        if not self._name:
            size = self._header_in(text)
            if not size:
                return 0
        size += self._scanner.scan(text[size:])
        self.is_complete = self._scanner.is_closed
        self.text += text[:size]
        return size

    def _header_in(self, text: str) -> int:
        """Return the size of the header at the beginning of `text`; 0 if there is no complete header."""
        found = self._family.whole_headers.match(text)
        if found is not None:
            name = next(group for group in found.groups() if group)
            self._name = self._known(name)
            self._begin = found.end()
            self.is_rejected = not self._name
            return found.end() if self._name else 0
        longest = max(begun.match(text).end() for begun in self._family.begun_headers)  # type: ignore[union-attr]
        self.is_rejected = longest < len(text)
        return 0

    def _known(self, name: str) -> str:
        """Return the tool named by a header. Some models append the call's number to the name."""
        if name in self._tools:
            return name
        without_index = name.rpartition(":")[0]
        return without_index if without_index in self._tools else ""

    def take_delta(self) -> tuple[str | None, str]:
        if not self._name:
            return None, ""
        name = None if self.is_name_sent else self._name
        self.is_name_sent = True
        arguments = self.text[self._begin + self._num_sent :]
        self._num_sent += len(arguments)
        return name, arguments

    def call(self) -> tuple[str, str] | None:
        arguments = self.text[self._begin :]
        try:
            msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None
        return self._name, arguments


def _parts(header: str) -> list[str]:
    return [part for part in _PLACES.split(header) if part]


def _whole(header: str) -> str:
    """Return the pattern of a complete header. White space in headers is optional."""

    def pattern(part: str) -> str:
        if part.isspace():
            return _SPACE
        read_as = _READ_AS.get(part)
        return re.escape(part) if read_as is None else f"({read_as})" if part in _NAMED else read_as

    return _SPACE + "".join(pattern(part) for part in _parts(header)) + _SPACE


def _begun(header: str) -> str:
    """Return the pattern of every prefix of a header."""
    steps = [_SPACE]
    for part in _parts(header):
        steps += [_SPACE] if part.isspace() else [_READ_AS[part]] if part in _READ_AS else map(re.escape, part)
    pattern = _SPACE
    for step in reversed(steps):
        pattern = f"(?:{step}{pattern})?"
    return pattern


def _written(header: str, name: str, writer: RuleWriter) -> str:
    spelled: list[str] = []
    patterns: Sequence[str] = re.split(r"(\{id\}|\{numbered\})", header.replace("{name}", name))
    for part in patterns:
        if part == "{id}":
            spelled.append("/[A-Za-z0-9]{9}/")
        elif part == "{numbered}":
            spelled += [quoted(name + ":"), "/[0-9]{1,3}/"]
        elif part:
            spelled.append(writer.literal(part))
    return " ".join(spelled) or quoted("")
