"""A Constraint -> what llguidance parses with: its grammar text, its limits, and its complaints in a caller's words.

Both sides use this file, so that what the front's checker has passed is what a rank compiles. The caps here and the
limits given to the library bound what one constraint may cost; the rest (wall clock, memory) is `worker.py`'s. Knows
no tokens and no sequences. The library is imported when first needed, since most models never see a constraint.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from engine.protocol.tasks import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_SIZE_BYTES = {
    "json_schema": 64 * 1024,
    "json_object": 0,
    "regex": 1024,
    "choice": 64 * 1024,
    "grammar": 256 * 1024,
}
MAX_DEPTH = 32  # of a JSON schema

# At most one space where JSON allows white space: models of either habit keep theirs, and none can fill the answer
# with nothing. These settings override what a schema brings under "x-guidance".
JSON_OPTIONS: dict[str, Any] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": "[ ]?",
    "coerce_one_of": False,
    "lenient": False,
}

_NAMES = {
    "json_schema": "the JSON schema",
    "json_object": "the JSON object",
    "regex": "the regular expression",
    "choice": "the list of choices",
    "grammar": "the grammar",
}
_MAX_MESSAGE_CHARS = 300
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])")


class ConstraintRefused(Exception):
    """No sequence can be held to this constraint; the text says why, for the caller. `is_timeout`: the time for
    checking it ran out."""

    def __init__(self, message: str, *, is_timeout: bool = False) -> None:
        super().__init__(message)
        self.is_timeout = is_timeout


def name_of(constraint: Constraint) -> str:
    """What a message to the caller calls it."""
    return _NAMES[constraint.kind]


def refuse_oversized(constraint: Constraint) -> None:
    """What can be seen without compiling: size, depth, and whether JSON is JSON. Raises ConstraintRefused."""
    name, limit = name_of(constraint), MAX_SIZE_BYTES[constraint.kind]
    if constraint.kind == "json_object":
        return
    if len(constraint.text) > limit or len(constraint.text.encode(errors="replace")) > limit:
        raise ConstraintRefused(f"{name} is larger than {limit} bytes")
    if constraint.kind == "choice":
        _choices(constraint.text)
    elif constraint.kind == "json_schema":
        _schema(constraint.text)


def grammar_of(constraint: Constraint) -> str:
    """The grammar as llguidance reads it. Raises ConstraintRefused for what is not even well-formed."""
    from llguidance import LLMatcher

    refuse_oversized(constraint)
    if constraint.kind == "json_schema":
        return str(LLMatcher.grammar_from_json_schema(_schema(constraint.text), overrides=JSON_OPTIONS))
    if constraint.kind == "json_object":
        return str(LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=JSON_OPTIONS))
    if constraint.kind == "regex":
        return str(LLMatcher.grammar_from_regex(_unanchored(constraint.text)))
    if constraint.kind == "choice":
        alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in _choices(constraint.text))
        return str(LLMatcher.grammar_from_lark(f"start: {alternatives}"))
    return str(LLMatcher.grammar_from_lark(constraint.text))


def limits() -> LLParserLimits:
    """What compiling and each step may cost: about 20 ms to begin, 4 ms a step, 20 MB of lexer states. The library's
    errors stay free of the grammar's text and of what was generated."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=60_000,
        step_max_items=50_000,
        max_lexer_states=10_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def compile_matcher(constraint: Constraint, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher before the first token. Raises ConstraintRefused."""
    from llguidance import LLMatcher

    try:
        grammar = grammar_of(constraint)
    except ValueError as error:
        raise _refusal(constraint, str(error)) from error
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        raise _refusal(constraint, matcher.get_error())
    return matcher


def _choices(text: str) -> list[str]:
    choices = _parsed(text, "the list of choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintRefused("the list of choices must be a list of at least one string")
    return choices


def _schema(text: str) -> dict[str, Any]:
    schema = _parsed(text, "the JSON schema")
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise ConstraintRefused("the JSON schema must be an object")
    if _depth(schema) > MAX_DEPTH:
        raise ConstraintRefused(f"the JSON schema is nested deeper than {MAX_DEPTH} levels")
    return schema


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintRefused(f"{name} is not valid JSON: {error}") from error


def _depth(value: Any) -> int:
    """Levels of objects and lists in a parsed JSON value."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _unanchored(pattern: str) -> str:
    """Without a `^` at its beginning and a `$` at its end, which go without saying and which the library refuses."""
    pattern = pattern.removeprefix("^")
    if not pattern.endswith("$"):
        return pattern
    body = pattern[:-1]
    num_escapes = len(body) - len(body.rstrip("\\"))
    return pattern if num_escapes % 2 else body


def _refusal(constraint: Constraint, complaint: str) -> ConstraintRefused:
    """The library's error in a caller's words."""
    name = name_of(constraint)
    found = _UNIMPLEMENTED.search(complaint)
    if found:
        keywords = ", ".join(f"'{keyword}'" for keyword in json.loads(found[1]))
        return ConstraintRefused(f"{name} uses {keywords}, which is not supported")
    if "oneOf constraints are not supported" in complaint:
        return ConstraintRefused(f"{name} uses 'oneOf' with branches that overlap, which is not supported: use 'anyOf'")
    words = " ".join(complaint.partition("<state>")[0].split())
    return ConstraintRefused(f"{name} cannot be used: {words[:_MAX_MESSAGE_CHARS]}")
