"""Compilation of a Constraint to an llguidance matcher.

The node's checker and the ranks both compile with this module, so a constraint that passes the check also compiles in a
rank. The size limits here and the limits given to llguidance bound the cost of one constraint; time and memory of the
check are bounded by `check_worker.py`. llguidance is imported when first needed: most models never see a constraint.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.protocol.output_format import (
    MAX_GRAMMAR_BYTES,
    MAX_REGEX_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    Constraint,
)
from engine.structured.error_messages import readable_error
from engine.structured.json_schema import ANY_OBJECT, adapt_schema, depth_of
from engine.structured.lark import as_lark, with_token_ids, without_anchors
from engine.structured.refusal import ConstraintRefused

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

    from engine.structured.vocabulary import Vocabulary

MAX_SIZE_BYTES = {
    "json_schema": MAX_SCHEMA_BYTES,
    "json_object": 0,
    "regex": MAX_REGEX_BYTES,
    "choice": MAX_SCHEMA_BYTES,
    "grammar": 4 * MAX_GRAMMAR_BYTES,  # grammars of tool calls are longer than those of callers
}

# At most one space where JSON allows white space: models with and without spaces both keep their style, and no model
# can fill the output with white space. These options override "x-guidance" in a schema.
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
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])")


def constraint_name(constraint: Constraint) -> str:
    """Return the name of the constraint's kind for error messages."""
    return _NAMES[constraint.kind]


def check_size(constraint: Constraint) -> None:
    """Check what needs no compilation: size, depth, and JSON syntax. Raises ConstraintRefused."""
    name, limit = constraint_name(constraint), MAX_SIZE_BYTES[constraint.kind]
    if constraint.kind == "json_object":
        return
    if len(constraint.text) > limit or len(constraint.text.encode(errors="replace")) > limit:
        raise ConstraintRefused(f"{name} is larger than {limit} bytes")
    if constraint.kind == "choice":
        _parse_choices(constraint.text)
    elif constraint.kind == "json_schema":
        _parse_schema(constraint.text)


def cache_key(constraint: Constraint, namespace: bytes) -> bytes:
    """Return the key under which results for a constraint are cached in one namespace."""
    text = f"{constraint.kind}\0{constraint.text}".encode(errors="surrogatepass")
    return namespace + hashlib.sha256(text).digest()


def compile_matcher(constraint: Constraint, vocabulary: Vocabulary) -> LLMatcher:
    """Return a matcher that has consumed no token. Most of the work runs without the GIL. Raises ConstraintRefused."""
    from llguidance import LLMatcher

    try:
        grammar = _grammar_of(constraint, vocabulary.control_ids)
    except ValueError as error:
        raise _refusal(constraint, str(error)) from error
    matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        raise _refusal(constraint, matcher.get_error())
    return matcher


def matcher_error(constraint: Constraint, matcher: LLMatcher) -> str:
    """Return the error of a matcher that compiled and failed later, as a message for the caller."""
    return str(_refusal(constraint, matcher.get_error()))


@functools.cache
def limits() -> LLParserLimits:
    """Limits of compilation and of each step: about 20 ms to start, 4 ms per step, 20 MB of lexer states.

    llguidance's error messages then contain neither the grammar nor the generated text.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=10_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def _grammar_of(constraint: Constraint, control_ids: Mapping[str, int]) -> str:
    """Return the grammar that llguidance parses. Raises ConstraintRefused or ValueError."""
    from llguidance import LLMatcher

    check_size(constraint)
    if constraint.kind == "json_schema":
        schema = adapt_schema(_parse_schema(constraint.text))
        return str(LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS))
    if constraint.kind == "json_object":
        return str(LLMatcher.grammar_from_json_schema(ANY_OBJECT, overrides=JSON_OPTIONS))
    if constraint.kind == "regex":
        return str(LLMatcher.grammar_from_regex(without_anchors(constraint.text)))
    if constraint.kind == "choice":
        alternatives = " | ".join(json.dumps(each, ensure_ascii=False) for each in _parse_choices(constraint.text))
        return str(LLMatcher.grammar_from_lark(f"start: {alternatives}"))
    return str(LLMatcher.grammar_from_lark(with_token_ids(as_lark(constraint.text), control_ids)))


def _parse_choices(text: str) -> list[str]:
    choices = _parse_json(text, "the list of choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintRefused("the list of choices must be a list of at least one string")
    return choices


def _parse_schema(text: str) -> dict[str, Any]:
    schema = _parse_json(text, "the JSON schema")
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise ConstraintRefused("the JSON schema must be an object")
    if depth_of(schema) > MAX_SCHEMA_DEPTH:
        raise ConstraintRefused(f"the JSON schema is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    return schema


def _parse_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintRefused(f"{name} is not valid JSON: {error}") from error


def _refusal(constraint: Constraint, message: str) -> ConstraintRefused:
    """Return llguidance's error as one for the caller."""
    name = constraint_name(constraint)
    found = _UNIMPLEMENTED.search(message)
    if found:
        keywords = ", ".join(f"'{keyword}'" for keyword in json.loads(found[1]))
        return ConstraintRefused(f"{name} uses {keywords}, which is not supported")
    if "oneOf constraints are not supported" in message:
        return ConstraintRefused(
            f"{name} uses 'oneOf' with branches that overlap or are references, which is not supported: use 'anyOf'"
        )
    return ConstraintRefused(f"{name} cannot be used: {readable_error(message)}")
