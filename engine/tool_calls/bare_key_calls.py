"""Calls whose arguments are an object with bare keys and strings between marks: `call:f{city:<|"|>Paris<|"|>,days:3}`.

The syntax of Gemma 4, whose templates write keys in alphabetical order, as the grammar does. Numbers, true and false
are written as in JSON; null may be None. Other values without marks are strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.structured.json_schema import adapt_schema
from engine.text.detokenizer import start_of_partial
from engine.tool_calls.argument_reader import ArgumentReader
from engine.tool_calls.argument_types import has_plain_properties, properties_of, resolved, types_of
from engine.tool_calls.family import NAME, Family, RuleWriter, Tools, UnsupportedSchema, quoted
from engine.tool_calls.free_text import text_until

_MAX_KEY_CHARS = 256
_MAX_DEPTH = 64
_SIGNS = re.compile(r"[,{}\[\]]")
_BARE_KEY = re.compile(r"[^\s:,<>\"{}\[\]][^:,<>\"{}\[\]\n]{0,255}")
_WORD_END = re.compile(r"[,}\]]")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_LEVELS = 8  # lists and alternatives inside each other that a grammar distinguishes
_MAX_VALUES = 1000  # schemas of values in one grammar; references can repeat a schema any number of times
_ANNOTATIONS = frozenset({"type", "title", "description", "default", "examples", "$ref"})
_LIMITS = frozenset({"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"})
_ENFORCED = {"number": _LIMITS, "integer": _LIMITS, "array": frozenset({"items"})}
_UNSUPPORTED = frozenset({"allOf", "not", "if"})
_BOOLEAN = '("true" | "false")'
_NULL = '("null" | "None")'


@dataclass(frozen=True, kw_only=True)
class BareKeyCalls(Family):
    """`before_name name{key:value,key:value}`. `text_mark` stands before and after a string."""

    before_name: str
    text_mark: str

    def reader(self, tools: Tools) -> BareKeyReader:
        return BareKeyReader(self, tools)

    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        arguments = _ArgumentRules(self, f"arguments_{index}", schema, writer)
        arguments.add()
        head = writer.literal(self.before_name + name)
        return [f"call_{index}: {head} arguments_{index}", *arguments.lines]


class BareKeyReader(ArgumentReader):
    """Reads a header and one object. `_state` is header, key, value, text, word or after."""

    def __init__(self, family: BareKeyCalls, tools: Tools) -> None:
        super().__init__(tools)
        self._mark = family.text_mark
        self._header = re.compile(rf"{re.escape(family.before_name)}\s{{0,8}}({NAME})\s{{0,8}}\{{")
        self._state = "header"
        self._most_header_chars = len(family.before_name) + 160
        self._begin = family.before_name
        self._open: list[str] = []
        self._is_fresh = False  # the open object or list is empty so far

    def _step(self, text: str) -> int:
        steps: dict[str, Callable[[str], int]] = {
            "header": self._in_header,
            "text": self._in_text,
            "word": self._in_word,
            "key": self._in_key,
            "value": self._in_value,
            "after": self._after,
        }
        if self._state in ("header", "text", "word"):
            return steps[self._state](text)
        begun = text.lstrip()
        size = len(text) - len(begun)
        return size + (steps[self._state](begun) if begun else 0)

    def _in_header(self, text: str) -> int:
        found = self._header.match(text)
        if found is None:
            begin = text[: len(self._begin)]
            is_other = begin != self._begin[: len(begin)] or "}" in text or "\n" in text
            self.is_rejected = is_other or len(text) > self._most_header_chars
            return 0
        if not self._enter(found[1]):
            return 0
        self._enter_value("{")
        return found.end()

    def _enter_value(self, sign: str) -> None:
        self._arguments += sign
        self._open.append(sign)
        self._is_fresh, self._state = True, "key" if sign == "{" else "value"
        self.is_rejected = len(self._open) > _MAX_DEPTH

    def _leave_value(self) -> None:
        self._arguments += "}" if self._open.pop() == "{" else "]"
        self._state, self._is_fresh = "after", False
        self.is_complete = not self._open

    def _in_key(self, text: str) -> int:
        if text[0] == "}" and self._is_fresh:
            self._leave_value()
            return 1
        mark, at = self._mark, text.find(":")
        if text.startswith(mark):
            end = text.find(mark, len(mark))
            at = text.find(":", end + len(mark)) if end >= 0 else -1
        key = text[: max(at, 0)].strip().removeprefix(mark).removesuffix(mark)
        if at < 0 or len(key) > _MAX_KEY_CHARS or (key and key in self._keys and len(self._open) == 1):
            is_sign_first = not mark.startswith(text[: len(mark)]) and _SIGNS.search(text) is not None
            self.is_rejected = at >= 0 or is_sign_first or len(text) > _MAX_KEY_CHARS + 2 * len(mark)
            return 0
        self.is_rejected = not key or (not text.startswith(mark) and _SIGNS.search(key) is not None)
        if self.is_rejected:
            return 0
        if len(self._open) == 1:
            self._keys.add(key)  # a repeated key is rejected
        self._arguments += ("" if self._is_fresh else ", ") + quoted(key) + ": "
        self._state, self._is_fresh = "value", False
        return at + 1

    def _in_value(self, text: str) -> int:
        is_in_list = self._open[-1] == "["
        if text[0] == "]" and is_in_list and self._is_fresh:
            self._leave_value()
            return 1
        if text != self._mark and self._mark.startswith(text):
            return 0
        if is_in_list and not self._is_fresh:
            self._arguments += ", "
        self._is_fresh = False
        if text.startswith(self._mark):
            self._arguments += '"'
            self._state = "text"
            return len(self._mark)
        if text[0] in "{[":
            self._enter_value(text[0])
            return 1
        self._state = "word"
        return 0

    def _in_text(self, text: str) -> int:
        at = text.find(self._mark)
        size = at if at >= 0 else start_of_partial(text, self._mark)
        self._arguments += quoted(text[:size])[1:-1]
        if at < 0:
            return size
        self._arguments += '"'
        self._state = "after"
        return size + len(self._mark)

    def _in_word(self, text: str) -> int:
        end = _WORD_END.search(text)
        if end is None:
            return 0
        word = text[: end.start()].strip()
        self.is_rejected = not word
        self._arguments += _WORDS.get(word, word if _NUMBER.fullmatch(word) else quoted(word))
        self._state = "after"
        return end.start()

    def _after(self, text: str) -> int:
        if text[0] == ",":
            self._state = "key" if self._open[-1] == "{" else "value"
        elif text[0] == ("}" if self._open[-1] == "{" else "]"):
            self._leave_value()
        else:
            self.is_rejected = True
        return 0 if self.is_rejected else 1


class _ArgumentRules:
    """Grammar rules of the arguments of one tool: properties in alphabetical order. Enforces types, choices and the
    items of lists; an object inside the arguments may be any object. `lines` are the rules used."""

    def __init__(self, family: BareKeyCalls, name: str, root: Mapping[str, Any], writer: RuleWriter) -> None:
        self.lines: list[str] = []
        self._family = family
        self._name = name
        self._root = root
        self._writer = writer
        self._num_values = 0
        self._add_shared_rules()

    def _add_shared_rules(self) -> None:
        """Add the rules of strings and of any value."""
        name, family, writer = self._name, self._family, self._writer
        number = writer.json(adapt_schema({"type": "number"}))
        self.lines += [
            f"{name}_text: {writer.literal(family.text_mark)} {name}_rest",
            text_until(f"{name}_rest", family.text_mark, family.marks, writer.controls).rstrip(),
            f"{name}_any: {name}_text | {name}_number | {_BOOLEAN} | {_NULL} | {name}_list | {name}_object",
            f"{name}_number: {number}",
            f'{name}_list: "[" ({name}_any ("," {name}_any)*)? "]"',
            f'{name}_object: "{{" ({name}_pair ("," {name}_pair)*)? "}}"',
            f'{name}_pair: /{_BARE_KEY.pattern}/ ":" {name}_any',
        ]

    def _refuse(self, why: str) -> None:
        """Raise UnsupportedSchema, unless keywords that cannot be enforced are ignored."""
        if not self._writer.is_lenient:
            raise UnsupportedSchema(why)

    def add(self) -> None:
        """Add the rule of all arguments."""
        name, schema = self._name, self._root
        if not has_plain_properties(schema):
            self._refuse("its parameters are not plain properties")
        required = schema.get("required")
        pairs: list[str] = []
        for key, part in sorted(properties_of(schema).items(), key=lambda pair: pair[0].lower()):
            if not _BARE_KEY.fullmatch(key):
                self._refuse("a parameter's name cannot be written")
                continue
            self.lines.append(f"{name}_p{len(pairs)}: {self._writer.literal(key + ':')} {self._value(part, 0)}")
            pairs.append("" if isinstance(required, list) and key in required else "?")
        self.lines.append(f'{name}: "{{" {name}_first0 "}}"')
        for at, optional in enumerate(pairs):
            skip = f" | {name}_first{at + 1}" if optional else ""
            self.lines += [
                f"{name}_first{at}: {name}_p{at} {name}_next{at + 1}{skip}",
                f'{name}_next{at}: ("," {name}_p{at}){optional} {name}_next{at + 1}',
            ]
        others = schema.get("additionalProperties", True)
        if isinstance(others, Mapping) and others:
            self._refuse("parameters of any name have a schema")
        last = len(pairs)
        self.lines += [
            f"{name}_first{last}: " + (f"({name}_pair {name}_next{last})?" if others else '""'),
            f"{name}_next{last}: " + (f'("," {name}_pair)*' if others else '""'),
        ]

    def _value(self, part: Any, level: int) -> str:
        """Return the expression of a value; of any value if the schema does not say more."""
        self._num_values += 1
        if self._num_values > _MAX_VALUES:
            raise UnsupportedSchema("its parameters have too many parts")
        schema = resolved(part, self._root)
        if not _UNSUPPORTED.isdisjoint(schema):
            self._refuse("a parameter is more than its type")
            return f"{self._name}_any"
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choices, list) and choices and not any(isinstance(choice, list | dict) for choice in choices):
            return f"({' | '.join(map(self._choice, choices))})"
        branches = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(branches, list) and branches and level < _MAX_LEVELS:
            return f"({' | '.join(self._value(branch, level + 1) for branch in branches)})"
        types = types_of(part, self._root)
        enforced = _ANNOTATIONS.union(*(_ENFORCED.get(kind, ()) for kind in types or ()))
        if schema.keys() - enforced or level == _MAX_LEVELS:
            self._refuse("a parameter is more than its type")
        if types is None or level == _MAX_LEVELS:
            return f"{self._name}_any"
        return f"({' | '.join(self._of_type(schema, kind, level) for kind in sorted(types))})"

    def _of_type(self, schema: Mapping[str, Any], kind: str, level: int) -> str:
        if kind in ("number", "integer"):
            limits = {key: schema[key] for key in schema.keys() & _LIMITS}
            name = f"{self._name}_{len(self.lines)}"
            self.lines.append(f"{name}: {self._writer.json(adapt_schema({'type': kind, **limits}))}")
            return name
        if kind == "array" and "items" in schema:
            item = self._value(schema["items"], level + 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        shared = {"boolean": _BOOLEAN, "null": _NULL, "string": f"{self._name}_text", "array": f"{self._name}_list"}
        return shared.get(kind, f"{self._name}_object")

    def _choice(self, value: Any) -> str:
        """Return the expression of one fixed value."""
        mark = self._family.text_mark
        if not isinstance(value, str):
            return quoted(quoted(value))
        if mark in value:
            self._refuse("a choice cannot be written")
        return self._writer.literal(mark + value + mark)
