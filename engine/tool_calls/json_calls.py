"""Calls as JSON objects with the tool's name and arguments as fields: `{"name": …, "arguments": …}`. The syntax of
Hermes, Qwen, older Mistral models, Llama 3, Granite, Command and others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from engine.tool_calls.family import CallReader, Family, RuleWriter, Tools, quoted
from engine.tool_calls.json_scanner import JsonScanner

_FIRST_FIELD = re.compile(r'\{\s{0,64}"([^"]{11}|[^"]*")')  # enough of the field's name to recognize a call
_OTHER_FIELDS = ('arguments"', 'parameters"', 'type"', 'id"')


@dataclass(frozen=True, kw_only=True)
class JsonCalls(Family):
    """`id_field`: the field with the call's number, before the name."""

    name_field: str = "name"
    arguments_field: str = "arguments"
    id_field: str = ""

    @cached_property
    def header(self) -> re.Pattern[str]:
        """Pattern of a call up to its arguments; group 1 is the name."""
        numbered = rf'"{self.id_field}"\s*:\s*"[^"\\]{{0,128}}"\s*,\s*' if self.id_field else ""
        name = rf'"{self.name_field}"\s*:\s*"([^"\\]{{0,128}})"\s*,\s*'
        return re.compile(rf'\{{\s*(?:{numbered})?{name}"(?:arguments|parameters)"\s*:\s*(?=\{{)')

    @cached_property
    def first_fields(self) -> frozenset[str]:
        """The matches of `_FIRST_FIELD` with which a call can begin."""
        own = [field + '"' for field in (self.name_field, self.id_field) if field]
        return frozenset(field[:11] for field in (*own, *_OTHER_FIELDS))

    def begin_of(self, name: str) -> str:
        numbered = f'"{self.id_field}": "0", ' if self.id_field else ""
        return f'{self.head}{{{numbered}"{self.name_field}": "{name}", "{self.arguments_field}"'

    def reader(self, tools: Tools) -> JsonReader:
        return JsonReader(self, tools)

    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        numbered = f'{quoted(f"""{{"{self.id_field}": """)} /"[0-9]{{1,3}}"/ ", " ' if self.id_field else '"{" '
        fields = f'"{self.name_field}": {quoted(name)}, "{self.arguments_field}": '
        if not self.id_field:
            numbered, fields = "", "{" + fields
        return [
            f'call_{index}: {numbered}{quoted(fields)} arguments_{index} "}}"',
            f"arguments_{index}: {writer.json(schema)}",
        ]


class JsonReader(CallReader):
    """Reads an object that may be a call."""

    def __init__(self, family: JsonCalls, tools: Tools) -> None:
        super().__init__(tools)
        self._family = family
        self._is_first_known = False
        self._scanner = JsonScanner()
        self._arguments = JsonScanner()
        self._sent_up_to = 0  # offset behind the arguments returned by `take_delta`

    def push(self, text: str) -> int:
        if not self.text and not text.startswith("{"):
            self.is_rejected = True
            return 0
        if not self._is_first_known:
            first = _FIRST_FIELD.match(self.text + text)
            self._is_first_known = first is not None
            if first is not None and first[1] not in self._family.first_fields:
                self.is_rejected = True
                text = text[: first.end() - len(self.text)]
        size = self._scanner.scan(text)
        self.is_complete = self._scanner.is_closed
        self.text += text[:size]
        return size

    def take_delta(self) -> tuple[str | None, str]:
        name = None
        if not self.is_name_sent:
            header = self._family.header.match(self.text)
            if header is None or header[1] not in self._tools:
                return None, ""
            self.is_name_sent, self._sent_up_to, name = True, header.end(), header[1]
        if self._arguments.is_closed:
            return name, ""
        size = self._arguments.scan(self.text[self._sent_up_to :])
        arguments = self.text[self._sent_up_to : self._sent_up_to + size]
        self._sent_up_to += size
        return name, arguments

    def call(self) -> tuple[str, str] | None:
        try:
            call: Any = msgspec.json.decode(self.text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None
        name, arguments = call.get(self._family.name_field), call.get("arguments", call.get("parameters", {}))
        if not isinstance(name, str) or name not in self._tools or not isinstance(arguments, dict):
            return None
        header = self._family.header.match(self.text)
        if header is None:
            return name, msgspec.json.encode(arguments).decode()
        return name, self.text[header.end() : header.end() + JsonScanner().scan(self.text[header.end() :])]
