"""Calls written as Python: `[f(city="Paris", days=3), g()]`. Arguments have names; values are literals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.tool_calls.argument_reader import ArgumentReader
from engine.tool_calls.argument_types import has_plain_properties, properties_of, resolved, types_of
from engine.tool_calls.family import NAME, Family, RuleWriter, Tools, UnsupportedSchema, quoted
from engine.tool_calls.python_literals import PythonReader

_WHOLE_NAME = re.compile(rf"({NAME})\s{{0,8}}\(")
_BEGUN_NAME = re.compile(rf"(?:{NAME}(?:\s{{0,8}}\(?)?)?")
_WHOLE_KEY = re.compile(r"\s*([A-Za-z_]\w{0,127})\s{0,8}=")
_BEGUN_KEY = re.compile(r"\s*(?:[A-Za-z_]\w{0,127}(?:\s{0,8}=?)?)?")
_KEY = re.compile(r"[A-Za-z_]\w{0,127}")


@dataclass(frozen=True, kw_only=True)
class PythonCalls(Family):
    """`has_json_words`: true, false and null are written as in JSON. Both spellings are read."""

    has_json_words: bool = False

    def reader(self, tools: Tools) -> PythonCallReader:
        return PythonCallReader(tools)

    def begin_of(self, name: str) -> str:
        return f"[{name}("

    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        properties = properties_of(schema)
        is_plain = has_plain_properties(schema) and all(map(_KEY.fullmatch, properties))
        if not is_plain and not writer.is_lenient:
            raise UnsupportedSchema("its parameters are not plain properties")
        rules: list[str] = []
        required: list[str] = []
        others: list[str] = []
        for number, (key, part) in enumerate(properties.items()):
            if not _KEY.fullmatch(key):
                continue
            argument = f"argument_{index}_{number}"
            rules += [f"{argument}: {quoted(key + '=')} value_{index}_{number}"]
            rules += self._value_rules(f"value_{index}_{number}", part, schema, writer)
            (required if key in schema.get("required", ()) else others).append(argument)
        if not rules:
            return [f"call_{index}: {quoted(name + '()')}"]
        arguments = f"arguments_{index}" + ("" if required else "?")
        listed = _listed(required, others)
        return [f'call_{index}: {quoted(name + "(")} {arguments} ")"', f"arguments_{index}: {listed}", *rules]

    def _value_rules(self, name: str, part: Any, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        """Return the rules of a value. JSON is valid Python except for true, false and null."""
        types = types_of(part, schema)
        if not self.has_json_words:
            if types == frozenset({"boolean"}) and not {"enum", "const"} & resolved(part, schema).keys():
                return [f'{name}: "True" | "False"']
            if types == frozenset({"null"}):
                return [f'{name}: "None"']
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        return [f"{name}: {writer.json({**definitions, **resolved(part, schema)})}"]


def _listed(required: list[str], others: list[str]) -> str:
    """Return the rule for all of `required`, then any of `others`, with commas between them; at least one."""

    def more(names: list[str]) -> str:
        return " ".join(f'(", " {name})?' for name in names)

    if required:
        return ' ", " '.join(required) + " " + more(others)
    return " | ".join(f"{name} {more(others[place + 1 :])}" for place, name in enumerate(others))


class PythonCallReader(ArgumentReader):
    """Reads a name and arguments up to the closing parenthesis. `_state` is name, first, key, value or after."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._state = "name"
        self._value: PythonReader | None = None

    def _partial_argument(self) -> str:
        return self._value.json if self._value is not None else ""

    def _step(self, text: str) -> int:
        if self._state == "name":
            return self._in_name(text)
        if self._state == "value":
            return self._in_value(text)
        begun = text.lstrip()
        size = len(text) - len(begun)
        if not begun:
            return size
        if begun[0] == ")" and self._state != "key":
            self._arguments += "}" if self._keys else "{}"
            self.is_complete = True
            return size + 1
        if self._state == "after":
            self.is_rejected = begun[0] != ","
            self._state = "key"
            return 0 if self.is_rejected else size + 1
        return self._in_key(text)

    def _in_name(self, text: str) -> int:
        found = _WHOLE_NAME.match(text)
        if found is None:
            begun = _BEGUN_NAME.match(text)
            self.is_rejected = begun is None or begun.end() < len(text)
            return 0
        if not self._enter(found[1]):
            return 0
        self._state = "first"
        return found.end()

    def _in_key(self, text: str) -> int:
        found = _WHOLE_KEY.match(text)
        if found is None:
            begun = _BEGUN_KEY.match(text)
            self.is_rejected = begun is None or begun.end() < len(text)
            return 0
        self.is_rejected = found[1] in self._keys
        if self.is_rejected:
            return 0
        self._arguments += (", " if self._keys else "{") + quoted(found[1]) + ": "
        self._keys.add(found[1])
        self._value, self._state = PythonReader(), "value"
        return found.end()

    def _in_value(self, text: str) -> int:
        assert self._value is not None
        size = self._value.push(text)
        self.is_rejected = self._value.is_rejected
        if self._value.is_complete:
            self._arguments += self._value.json
            self._value, self._state = None, "after"
        return size
