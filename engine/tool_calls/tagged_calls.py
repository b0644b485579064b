"""Calls with each argument between tags: `<function=f><parameter=city>Paris</parameter></function>`.

The syntax of GLM, Qwen's coder models, and DeepSeek since V3.2. Strings stand without quotes, other values as JSON; the
tool's schema decides which of both a value is.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec

from engine.tool_calls.argument_reader import ArgumentReader
from engine.tool_calls.argument_types import (
    has_plain_properties,
    may_be_string,
    must_be_string,
    properties_of,
    resolved,
    types_of,
)
from engine.tool_calls.family import NAME, Family, RuleWriter, Tools, UnsupportedSchema, quoted
from engine.tool_calls.free_text import text_until

_MAX_KEY_CHARS = 256
_MAX_KEY_END_CHARS = 64
_KEY = r"/[A-Za-z0-9_.:-]{1,64}/"
_UNSUPPORTED_KEYWORDS = frozenset(
    {"enum", "const", "pattern", "format", "minLength", "maxLength", "allOf", "anyOf", "oneOf", "not", "if"}
)
# A string in JSON or Python syntax, also one without an end. A quotation mark between letters is an apostrophe.
_STRING = re.compile(
    r"""
      " (?: [^"\\] | \\. )* (?: " | \\?\Z )
    | (?<= [\[({:,\s] ) ' (?: [^'\\] | \\. | '(?! \s* (?: [\])}:,] | \Z ) ) )* (?: ' | \\?\Z )
    """,
    re.DOTALL | re.VERBOSE,
)

ValueKind = Literal["schema", "text", "json"]


@dataclass(frozen=True, kw_only=True)
class TaggedCalls(Family):
    """`before_name name after_name (before_key key after_key before_value value after_value)* call_end`, with optional
    white space between the parts.

    `after_text_key` and `after_json_key` replace `after_key` in families that mark the kind of a value. `wraps_values`:
    values stand on lines of their own. `line` is written between the parts; `is_line_free`: it is optional.
    """

    before_name: str = ""
    after_name: str = ""
    before_key: str
    after_key: str = ""
    before_value: str = ""
    after_text_key: str = ""
    after_json_key: str = ""
    after_value: str
    call_end: str
    wraps_values: bool = False
    line: str = ""
    is_line_free: bool = False

    @cached_property
    def whole_header(self) -> re.Pattern[str]:
        """Pattern of the name and the tags around it, up to the next part."""
        name = rf"((?>{NAME}))"
        return re.compile(
            rf"{re.escape(self.before_name)}{name}{re.escape(self.after_name)}(?>\s{{0,8}})(?=.)", re.DOTALL
        )

    @cached_property
    def begun_header(self) -> re.Pattern[str]:
        """Pattern of the longest prefix of a text that may begin a header."""
        pattern = r"\s{0,8}"
        for step in reversed([*map(re.escape, self.before_name), NAME, *map(re.escape, self.after_name)]):
            pattern = f"(?:{step}{pattern})?"
        return re.compile(pattern)

    @cached_property
    def key_ends(self) -> tuple[tuple[re.Pattern[str], ValueKind], ...]:
        """Patterns of the tag after a key, and the kind of the value that follows."""
        if self.after_text_key:
            marks: tuple[tuple[str, ValueKind], ...] = ((self.after_text_key, "text"), (self.after_json_key, "json"))
            return tuple((re.compile(re.escape(mark)), kind) for mark, kind in marks)
        gap = r"\s{0,8}" if self.before_value else ""
        return ((re.compile(re.escape(self.after_key) + gap + re.escape(self.before_value)), "schema"),)

    def reader(self, tools: Tools) -> TaggedReader:
        return TaggedReader(self, tools)

    def call_rules(self, index: int, name: str, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        literal = writer.literal
        properties = properties_of(schema) if has_plain_properties(schema) else None
        if properties is None and not writer.is_lenient:
            raise UnsupportedSchema("its parameters are not plain properties")
        required = schema.get("required")
        pairs: list[str] = []
        rules: list[str] = []
        for number, (key, part) in enumerate((properties or {}).items()):
            if key != key.strip() or len(key) > _MAX_KEY_CHARS or any(sign in key for sign in '<>"\n'):
                if not writer.is_lenient:
                    raise UnsupportedSchema("a parameter's name cannot be written")
                continue
            pair = f"pair_{index}_{number}"
            rules += self._value_rules(f"value_{index}_{number}", part, schema, writer)
            rules.append(
                f"{pair}: {literal(self.before_key)} {quoted(key)} value_{index}_{number} {self._line(writer)}"
            )
            pairs.append(pair if isinstance(required, list) and key in required else f"{pair}?")
        if properties is None or schema.get("additionalProperties", True) is not False:
            rules += self._free_rules(index, writer)
            pairs.append(f"free_{index}*")
        head = f"{literal(self.before_name + name + self.after_name)} {self._line(writer)}"
        return [f"call_{index}: {head} {' '.join(pairs)} {literal(self.call_end)}", *rules]

    def _line(self, writer: RuleWriter) -> str:
        return (writer.literal(self.line) + "?" * self.is_line_free) if self.line else ""

    def _key_end(self, mark: str, writer: RuleWriter) -> str:
        """Return the rule for the tags between a key and its value."""
        if not self.before_value:
            return writer.literal((mark or self.after_key) + "\n" * self.wraps_values)
        return f"{writer.literal(self.after_key)} {self._line(writer)} {writer.literal(self.before_value)}"

    def _value_rules(self, name: str, part: Any, schema: Mapping[str, Any], writer: RuleWriter) -> list[str]:
        """Return the rules of `name`: the tags after the key, a value, and the tag after the value."""
        part = resolved(part, schema)
        end = writer.literal("\n" * self.wraps_values + self.after_value)
        as_text, as_json = (self._key_end(mark, writer) for mark in (self.after_text_key, self.after_json_key))
        choices = part.get("enum", [part["const"]] if "const" in part else None)
        if isinstance(choices, list) and choices and not self.after_text_key:
            texts = [choice if isinstance(choice, str) else quoted(choice) for choice in choices]
            if not any(self.after_value in text or text != text.strip() or not text for text in texts):
                return [f"{name}: {as_text} ({' | '.join(map(quoted, texts))}) {end}"]
        if must_be_string(part, schema) or (may_be_string(part, schema) and not self.after_text_key):
            if not writer.is_lenient and any(key in part for key in _UNSUPPORTED_KEYWORDS):
                raise UnsupportedSchema("a text has more to it than its type")
            return [f"{name}: {as_text} {name}_text", self._text_rule(f"{name}_text", writer)]
        if types_of(part, schema) == frozenset({"boolean"}):
            return [f'{name}: {as_json} ("true" | "false" | "True" | "False") {end}']
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        return [f"{name}: {as_json} {name}_json {end}", f"{name}_json: {writer.json({**definitions, **part})}"]

    def _free_rules(self, index: int, writer: RuleWriter) -> list[str]:
        """Return the rules of arguments with any name."""
        name = f"free_{index}"
        begin = f"{writer.literal(self.before_key)} {_KEY} {self._key_end(self.after_text_key, writer)}"
        return [f"{name}: {begin} {name}_text {self._line(writer)}", self._text_rule(f"{name}_text", writer)]

    def _text_rule(self, name: str, writer: RuleWriter) -> str:
        """Return the rule of a string and the tag after it."""
        return text_until(name, self.after_value, self.marks, writer.controls).rstrip()


class TaggedReader(ArgumentReader):
    """Reads a header, arguments between tags, and the end tag."""

    def __init__(self, family: TaggedCalls, tools: Tools) -> None:
        super().__init__(tools)
        self._family = family
        self._schema: Mapping[str, Any] = {}
        self._state = "header"
        self._part: Any = {}  # schema of the current value
        self._kind: ValueKind = "schema"
        self._is_begun = False  # a part of the current string was written
        self._awaits_line = False  # a line break before the value may follow
        self._value: list[str] = []  # parts of a value that may not be a string

    def _step(self, text: str) -> int:
        steps = {"header": self._in_header, "between": self._between, "key": self._in_key, "value": self._in_value}
        return steps[self._state](text)

    def _in_header(self, text: str) -> int:
        found = self._family.whole_header.match(text)
        if found is None:
            begun = self._family.begun_header.match(text)
            assert begun is not None
            self.is_rejected = begun.end() < len(text)
            return 0
        if not self._enter(found[1]):
            return 0
        self._schema = self._tools[self._name] if isinstance(self._tools, Mapping) else {}
        self._state = "between"
        return found.end()

    def _between(self, text: str) -> int:
        begun, call_end = text.lstrip(), self._family.call_end.strip()
        size = len(text) - len(begun)
        if begun.startswith(call_end):
            self._arguments += "}" if self._arguments else "{}"
            self.is_complete = True
            return size + len(call_end)
        if begun.startswith(self._family.before_key):
            self._state = "key"
            return size + len(self._family.before_key)
        marks = (call_end, self._family.before_key)
        self.is_rejected = not any(mark.startswith(begun) for mark in marks)
        return 0

    def _in_key(self, text: str) -> int:
        found = [(end, kind) for mark, kind in self._family.key_ends if (end := mark.search(text)) is not None]
        end, self._kind = min(found, key=lambda pair: pair[0].start(), default=(None, "schema"))
        if end is None or end.start() > _MAX_KEY_CHARS:
            self.is_rejected = len(text) > _MAX_KEY_CHARS + _MAX_KEY_END_CHARS
            return 0
        key = text[: end.start()].strip()
        if key in self._keys:
            self.is_rejected = True  # a repeated key
            return 0
        self._keys.add(key)
        self._arguments += ("," if self._arguments else "{") + (" " if len(self._keys) > 1 else "") + quoted(key) + ": "
        self._part = resolved(properties_of(self._schema).get(key, {}), self._schema)
        self._is_begun, self._awaits_line, self._value = False, self._family.wraps_values, []
        self._state = "value"
        return end.end()

    def _in_value(self, text: str) -> int:
        end, wraps = self._family.after_value, self._family.wraps_values
        if self._awaits_line and text:
            self._awaits_line = False
            if text[0] == "\n":
                return 1
        at = self._end_in(text)
        if at < 0:
            size = _safe_size(text, end, keeps_line=wraps)
            self._take(text[:size], is_last=False)
            return size
        self._take(text[:at].removesuffix("\n") if wraps else text[:at], is_last=True)
        self._state = "between"
        return at + len(end)

    def _end_in(self, text: str) -> int:
        """Return the offset of the value's end in `text`, outside of open objects and lists; -1 if there is none."""
        at = text.find(self._family.after_value)
        while at >= 0 and not self._is_text:
            if _is_closed(("".join(self._value) + text[:at]).strip()):
                break
            at = text.find(self._family.after_value, at + 1)
        return at

    def _take(self, text: str, *, is_last: bool) -> None:
        if self._is_text:
            self._arguments += ("" if self._is_begun else '"') + quoted(text)[1:-1] + ('"' if is_last else "")
            self._is_begun = True
            return
        self._value.append(text)
        if is_last:
            whole, is_json = "".join(self._value), self._kind == "json"
            types = None if is_json else types_of(self._part, self._schema)
            self._arguments += _json_value(whole, types, self._part.get("enum"), is_json=is_json)

    @property
    def _is_text(self) -> bool:
        """True if the current value must be a string."""
        return self._kind == "text" or (self._kind == "schema" and must_be_string(self._part, self._schema))


def _is_closed(value: str) -> bool:
    """Return True if `value` is not the beginning of an incomplete object or list, in JSON or Python syntax."""
    signs = _STRING.sub("", value)
    return value[:1] not in ("{", "[") or sum(map(signs.count, "{[(")) <= sum(map(signs.count, ")]}"))


def _safe_size(text: str, end: str, *, keeps_line: bool) -> int:
    """Return the number of characters of `text` that cannot belong to `end` or to the line break before it."""
    size = len(text)
    for length in range(min(len(end) - 1, len(text)), 0, -1):
        if text.endswith(end[:length]):
            size -= length
            break
    return size - 1 if keeps_line and size and text[size - 1] == "\n" else size


def _json_value(text: str, types: Collection[str] | None, choices: Any, *, is_json: bool) -> str:
    """Return a value as JSON text: the value that `text` spells if its type is one of `types` (None: any), otherwise
    the text as a string. `is_json`: strings are in quotes."""
    if not is_json and isinstance(choices, list) and text in choices:
        return quoted(text)
    spelled = text.strip()
    try:
        value = msgspec.json.decode(spelled)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        spelled = _json_of_python(spelled)
        if not spelled:
            return quoted(text)
        value = msgspec.json.decode(spelled)
    if isinstance(value, str) and not is_json:
        return quoted(text)
    return spelled if types is None or _type_of(value) & set(types) else quoted(text)


def _json_of_python(text: str) -> str:
    """Return the JSON text of a Python container or constant, which some models write instead of JSON; "" for other
    text."""
    if not text.startswith(("[", "{", "(", "True", "False", "None")):
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unknown escapes in a model's output are not this program's
            return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ""


def _type_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    names: dict[type, str] = {str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}
