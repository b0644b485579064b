"""Calls whose arguments are an object with bare keys and strings between marks: `call:f{city:<|"|>Paris<|"|>,days:3}`.

The syntax of Gemma 4, whose templates write keys in alphabetical order, as the grammar does. Numbers, true and false
are written as in JSON; null may be None. Other values without marks are strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.structured.json_schema import adapt_schema
from engine.tool_calls.argument_reader import ArgumentReader
from engine.tool_calls.argument_types import properties_of, resolved, types_of
from engine.tool_calls.call_parser import start_of_partial
from engine.tool_calls.family import NAME, Family, RuleWriter, Tools, UnsupportedSchema, quoted
from engine.tool_calls.free_text import text_until

_MAX_KEY_CHARS = 256
_MAX_DEPTH = 64
_SIGNS = re.compile(r"[,{}\[\]]")
_BARE_KEY = re.compile(r"[^\s:,<>\"{}\[\]][^:,<>\"{}\[\]\n]{0,255}")
_WORD_END = re.compile(r"[,}\]]")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMERIC = ("number", "integer", "boolean")
_UNSUPPORTED_LIMITS = {
    "string": ("pattern", "format", "minLength", "maxLength"),
    "array": ("prefixItems", "maxItems", "uniqueItems", "contains"),
    "object": ("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired"),
}
_UNSUPPORTED_KEYWORDS = ("allOf", "not", "if")
_TYPES = ("string", "number", "boolean", "null", "array", "object")


@dataclass(frozen=True, kw_only=True)
class BareKeyCalls(Family):
    """`before_name name{key:value,key:value}`. `text_mark` stands before and after a string."""

    before_name: str
    text_mark: str

    def reader(self, tools: Tools) -> BareKeyReader:
        return BareKeyReader(self, tools)

    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        values = _ValueRules(self, f"value_{index}", schema, writer)
        arguments = values.arguments_rule()
        return [f"call_{index}: {writer.literal(self.before_name + name)} {arguments}", *values.lines]


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


class _ValueRules:
    """Grammar rules of values by their schemas, which are parts of `root`. Each part has one rule, so that a schema may
    refer to itself. `lines` are the rules used."""

    def __init__(self, family: BareKeyCalls, prefix: str, root: Mapping[str, Any], writer: RuleWriter) -> None:
        self.lines: list[str] = []
        self._family = family
        self._prefix = prefix
        self._root = root
        self._writer = writer
        self._known: dict[int | str, str] = {}

    def arguments_rule(self) -> str:
        """Return the rule of the whole arguments."""
        schema = resolved(self._root, self._root)
        if any(key in schema for key in (*_UNSUPPORTED_KEYWORDS, "anyOf", "oneOf")):
            self._refuse("its parameters are not plain properties")
        return self.object_rule(schema)

    def _name(self, key: int | str) -> tuple[str, bool]:
        """Return the rule name for `key`, and True if the rule is new."""
        if key in self._known:
            return self._known[key], False
        self._known[key] = f"{self._prefix}_{len(self._known)}"
        return self._known[key], True

    def _refuse(self, why: str) -> None:
        """Raise UnsupportedSchema, unless keywords that cannot be enforced are ignored."""
        if not self._writer.is_lenient:
            raise UnsupportedSchema(why)

    def value(self, part: Any) -> str:
        schema = resolved(part, self._root)
        if not schema:
            return self._any()
        name, is_new = self._name(id(schema))
        if is_new:
            self.lines.append(f"{name}: {' | '.join(self._alternatives(schema))}")
        return name

    def _alternatives(self, schema: Mapping[str, Any]) -> list[str]:
        if any(key in schema for key in _UNSUPPORTED_KEYWORDS):
            self._refuse("a parameter is more than its type")
            return [self._any()]
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choices, list) and choices:
            return [self._fixed_value(choice) for choice in choices]
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                return [self.value(branch) for branch in schema[key]]
        types = types_of(schema, self._root)
        return [self._of_type(schema, one) for one in sorted(_TYPES if types is None else types)]

    def _of_type(self, schema: Mapping[str, Any], one: str) -> str:
        if any(key in schema for key in _UNSUPPORTED_LIMITS.get(one, ())):
            self._refuse("a parameter has more to it than its type")
        if one == "string":
            return self._text()
        if one in _NUMERIC:
            limits = {key: schema[key] for key in schema if key.endswith(("imum", "multipleOf"))}
            return self._rule(self._writer.json(adapt_schema({"type": one, **limits})))
        if one == "null":
            return '("null" | "None")'
        if one == "array":
            least = schema.get("minItems", 0)
            if least not in (0, 1):
                self._refuse("a list has a length")
            item = self.value(schema.get("items", {}))
            return self._rule(f'"[" ({item} ("," {item})*){"" if least else "?"} "]"')
        return self.object_rule(schema)

    def _rule(self, body: str) -> str:
        name, _ = self._name(f"rule {len(self._known)}")
        self.lines.append(f"{name}: {body}")
        return name

    def object_rule(self, schema: Mapping[str, Any]) -> str:
        """Return the rule of an object: properties in alphabetical order, then other properties where the schema allows
        these."""
        name, is_new = self._name(f"object {id(schema)}")
        if not is_new:
            return name
        required = schema.get("required")
        pairs: list[tuple[str, bool]] = []
        for key, part in self._properties(schema):
            is_required = isinstance(required, list) and key in required
            pairs.append((f"{self._writer.literal(key + ':')} {self.value(part)}", is_required))
        others = schema.get("additionalProperties", True)
        more = f'/{_BARE_KEY.pattern}/ ":" {self.value({} if others is True else others)}' if others else ""
        last = len(pairs)
        self.lines.append(f'{name}: "{{" {name}_f0 "}}"')
        for at, (pair, is_required) in enumerate(pairs):
            first = f"{name}_p{at} {name}_t{at + 1}"
            self.lines += [
                f"{name}_p{at}: {pair}",
                f"{name}_f{at}: {first}" + ("" if is_required else f" | {name}_f{at + 1}"),
                f'{name}_t{at}: ("," {name}_p{at}){"" if is_required else "?"} {name}_t{at + 1}',
            ]
        if more:
            self.lines += [f"{name}_f{last}: ({more} {name}_t{last})?", f'{name}_t{last}: ("," {more})*']
        else:
            self.lines += [f'{name}_f{last}: ""', f'{name}_t{last}: ""']
        return name

    def _properties(self, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, part in sorted(properties_of(schema).items(), key=lambda pair: pair[0].lower()):
            if _BARE_KEY.fullmatch(key):
                yield key, part
            else:
                self._refuse("a parameter's name cannot be written")

    def _text(self) -> str:
        name, is_new = self._name("text")
        if is_new:
            family, writer = self._family, self._writer
            self.lines.append(f"{name}: {writer.literal(family.text_mark)} {name}_rest")
            self.lines.append(text_until(f"{name}_rest", family.text_mark, family.marks, writer.controls).rstrip())
        return name

    def _any(self) -> str:
        name, is_new = self._name("any")
        if is_new:
            self.lines.append(f"{name}: {' | '.join(self._of_type({}, one) for one in _TYPES)}")
        return name

    def _fixed_value(self, value: Any) -> str:
        """Return the rule of one fixed value."""
        if isinstance(value, str):
            mark = self._family.text_mark
            if mark in value:
                self._refuse("a choice cannot be written")
            return self._writer.literal(mark + value + mark)
        if isinstance(value, list | dict):
            self._refuse("a choice is no plain value")
            return self._any()
        return quoted(quoted(value))
