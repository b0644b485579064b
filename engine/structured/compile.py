"""A Constraint -> what llguidance parses with: its grammar text, its limits, and its complaints in a caller's words.

Both sides use this file, so that what the front's checker has passed is what a rank compiles. The caps here and the
limits given to the library bound what one constraint may cost; the rest (wall clock, memory) is `worker.py`'s. Knows
no tokens and no sequences. The library is imported when first needed, since most models never see a constraint.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from engine.protocol.output_format import Constraint
from engine.structured.closing_bound import bound_of
from engine.structured.complaints import in_own_words
from engine.structured.json_schema import (
    ANY_OBJECT,
    depth_of,
    has_free_strings_only,
    in_plain_words,
    least_chars_of,
    least_chars_of_parts,
    patterns_in,
    with_finite_numbers,
    words_of_patterns,
    words_of_regex,
)
from engine.structured.look_ahead import has_outer_bar, in_parts, looks_ahead
from engine.structured.one_of import said_with_any_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

    from engine.structured.token_view import TokenView

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
# What a Lark grammar is made of, as far as finding `<name>` goes: strings, patterns and comments hold none.
_LARK_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|<(?P<name>[^<>\n]+)>')
_PATTERN_WITHIN = re.compile(r'"pattern": ?("(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")')
_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_IDS = re.compile(r"\[[\d\s,^*-]+\]")
_PROBES = ('q0 "', 'Zx1 "', 'w7.Qj "')
_ENDING_TYPES = ("object", "array", "string")  # a bracket or a quote ends them
_CHARS_PER_TOKEN = 2  # at least that many, in keys and punctuation
_STEP_OF_GRAMMAR = 32
_CHARS_PER_ENDING = 8  # of what says that there must be some, a property and that it is required, at least that many
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


def grammar_of(constraint: Constraint, control_ids: Mapping[str, int]) -> str:
    """The grammar as llguidance reads it. Raises ConstraintRefused for what is not even well-formed."""
    from llguidance import LLMatcher

    refuse_oversized(constraint)
    if constraint.kind == "json_schema":
        return str(
            LLMatcher.grammar_from_json_schema(with_finite_numbers(_schema(constraint.text)), overrides=JSON_OPTIONS)
        )
    if constraint.kind == "json_object":
        return str(LLMatcher.grammar_from_json_schema(ANY_OBJECT, overrides=JSON_OPTIONS))
    if constraint.kind == "regex":
        if looks_ahead(constraint.text):
            return str(LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {terminal_of(constraint.text)}"))
        return str(LLMatcher.grammar_from_regex(unanchored(constraint.text)))
    if constraint.kind == "choice":
        alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in _choices(constraint.text))
        return str(LLMatcher.grammar_from_lark(f"start: {alternatives}"))
    return str(LLMatcher.grammar_from_lark(_with_ids(as_lark(constraint.text), control_ids)))


def as_lark(grammar: str) -> str:
    """A grammar in the dialect that the library reads, given in it or in llama.cpp's (`root ::= …`). Raises
    ConstraintRefused."""
    if not _GBNF.search(grammar):
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar)).replace("%llguidance {}", "")
    except Exception as error:  # the library's reader raises whatever it meets
        raise ConstraintRefused(f"the grammar cannot be used: {in_own_words(str(error))}") from error


def words_of(constraint: Constraint) -> tuple[str, ...]:
    """Words that a text may have to spell before it can end: a search for the shortest close tries them."""
    if constraint.kind == "json_schema":
        return words_of_patterns(_schema(constraint.text))
    if constraint.kind == "grammar":  # of calls, whose arguments' schemas stand in it
        patterns = dict.fromkeys(_PATTERN_WITHIN.findall(constraint.text))
        return words_of_regex("\0".join(json.loads(pattern) for pattern in patterns)) if patterns else ()
    return words_of_regex(constraint.text) if constraint.kind == "regex" else ()


def largest_step_of(constraint: Constraint) -> int:
    """About how many tokens one token may add to those that closing needs: it opens a part that must be filled in."""
    if constraint.kind == "json_schema":
        return least_chars_of_parts(_schema(constraint.text)) // _CHARS_PER_TOKEN
    return _STEP_OF_GRAMMAR if constraint.kind == "grammar" else 0


def num_endings_of(constraint: Constraint) -> int:
    """About how many brackets, commas and quotes its shortest text may have, or more."""
    least = least_chars_of(_schema(constraint.text)) if constraint.kind == "json_schema" else 0
    return max(least, len(constraint.text) // _CHARS_PER_ENDING)


def patterns_of(constraint: Constraint) -> Iterator[Constraint]:
    """Its regular expressions, each as a constraint of its own."""
    if constraint.kind == "regex":
        yield constraint
    elif constraint.kind == "json_schema":
        for pattern in patterns_in(_schema(constraint.text)):
            yield Constraint("json_schema", json.dumps({"type": "string", "pattern": pattern}))


def closing_bound_of(constraint: Constraint, view: TokenView) -> int | None:
    """Tokens that close any text that the constraint allows, for every place where it may stand; None if unknown."""
    if constraint.kind != "json_schema":
        return None
    return bound_of(_schema(constraint.text), lambda text: len(view.tokenizer.greedy_tokenize(text)))


def probe_of(constraint: Constraint) -> str:
    """What can come only where any text can, up to a quote, and the quote: in a JSON string that is not held to
    anything. Empty where no such text is known."""
    if constraint.kind == "json_object":
        return _PROBES[0]
    if constraint.kind != "json_schema" or not has_free_strings_only(_schema(constraint.text)):
        return ""
    spelled = constraint.text
    if "\\" in spelled:
        spelled = json.dumps(_schema(spelled), ensure_ascii=False)
    return next((probe for probe in _PROBES if probe[:-1] not in spelled), "")


def ends_itself(constraint: Constraint) -> bool:
    """Whether it is known that nothing can follow a text that is complete, so that no end token is ever allowed."""
    if constraint.kind == "json_schema":
        return _schema(constraint.text).get("type") in _ENDING_TYPES
    return constraint.kind == "json_object"


@functools.cache
def limits() -> LLParserLimits:
    """What compiling and each step may cost: about 20 ms to begin, 4 ms a step, 20 MB of lexer states. The library's
    errors stay free of the grammar's text and of what was generated."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=10_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def compile_matcher(constraint: Constraint, view: TokenView) -> LLMatcher:
    """A matcher before the first token. Raises ConstraintRefused."""
    return matcher_of(constraint, grammar_for(constraint, view), view)


def grammar_for(constraint: Constraint, view: TokenView) -> str:
    """`grammar_of` with a model's control tokens. Raises ConstraintRefused, for all that it refuses."""
    try:
        return grammar_of(constraint, view.control_ids)
    except ValueError as error:
        raise _refusal(constraint, str(error)) from error


def matcher_of(constraint: Constraint, grammar: str, view: TokenView) -> LLMatcher:
    """A matcher before the first token, from the constraint's grammar; without the interpreter's lock for nearly all of
    its time. Raises ConstraintRefused."""
    from llguidance import LLMatcher

    matcher = LLMatcher(view.tokenizer, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        raise _refusal(constraint, matcher.get_error())
    return matcher


def complaint_of(constraint: Constraint, matcher: LLMatcher) -> str:
    """What the library has against the first tokens that must come, though the constraint has compiled, in a caller's
    words; "" if nothing."""
    matcher.try_consume_tokens(matcher.compute_ff_tokens())
    return str(_refusal(constraint, matcher.get_error())) if matcher.is_error() else ""


def _choices(text: str) -> list[str]:
    choices = _parsed(text, "the list of choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintRefused("the list of choices must be a list of at least one string")
    return choices


@functools.lru_cache(maxsize=4)
def _schema(text: str) -> dict[str, Any]:
    """Not to be changed: it is read several times while one constraint is compiled."""
    schema = _parsed(text, "the JSON schema")
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise ConstraintRefused("the JSON schema must be an object")
    if depth_of(schema) > MAX_DEPTH:
        raise ConstraintRefused(f"the JSON schema is nested deeper than {MAX_DEPTH} levels")
    return in_plain_words(said_with_any_of(schema))


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintRefused(f"{name} is not valid JSON: {error}") from error


def _with_ids(grammar: str, control_ids: Mapping[str, int]) -> str:
    """A Lark grammar with the ids of control tokens in place of their names. Raises ConstraintRefused."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None or _IDS.fullmatch(name):
            return match[0]
        token_id = control_ids.get(f"<{name}>", control_ids.get(name))
        if token_id is None:
            raise ConstraintRefused(f"the grammar names <{name[:60]}>, which is no control token of this model")
        return f"<[{token_id}]>"

    return _LARK_PARTS.sub(replace, grammar)


def terminal_of(pattern: str) -> str:
    """A regular expression for whole texts, as a terminal of a Lark grammar; what it looks ahead for beside it."""
    body = unanchored(pattern)
    if not looks_ahead(body):
        return f"/{slashed(body)}/"
    ahead, rest = in_parts(f"^(?:{body})$" if has_outer_bar(body) else f"^{body}$")
    whole = [part[1:-1] if part.endswith("$") else f"{part[1:]}(?s:.*)" for part in (rest, *ahead)]
    return " & ".join(f"/{slashed(part)}/" for part in whole)


def slashed(pattern: str) -> str:
    """A regular expression as it stands between slashes."""
    return re.sub(r"(\\.)|(/)|(\n)", lambda found: found[1] or (r"\/" if found[2] else r"\n"), pattern, flags=re.DOTALL)


def unanchored(pattern: str) -> str:
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
    return ConstraintRefused(f"{name} cannot be used: {in_own_words(complaint)}")
