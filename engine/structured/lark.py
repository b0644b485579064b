"""Grammar text in the dialect of Lark that llguidance reads."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.structured.error_messages import readable_error
from engine.structured.refusal import ConstraintRefused

_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)
# The parts of a Lark grammar among which `<name>` is searched: strings, patterns and comments contain no names.
_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|<(?P<name>[^<>\n]+)>')
_TOKEN_IDS = re.compile(r"\[[\d\s,^*-]+\]")


def as_lark(grammar: str) -> str:
    """Return a Lark grammar unchanged, and a GBNF grammar (`root ::= …`) as Lark. Raises ConstraintRefused."""
    if not _GBNF.search(grammar):
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar)).replace("%llguidance {}", "")
    except Exception as error:  # the converter raises whatever it runs into
        raise ConstraintRefused(f"the grammar cannot be used: {readable_error(str(error))}") from error


def with_token_ids(grammar: str, control_ids: Mapping[str, int]) -> str:
    """Replace the names of control tokens (`<tool_call>`) by their ids. Raises ConstraintRefused for unknown names."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None or _TOKEN_IDS.fullmatch(name):
            return match[0]
        token_id = control_ids.get(f"<{name}>", control_ids.get(name))
        if token_id is None:
            raise ConstraintRefused(f"the grammar names <{name[:60]}>, which is no control token of this model")
        return f"<[{token_id}]>"

    return _PARTS.sub(replace, grammar)


def lark_regex(pattern: str) -> str:
    """Return a regular expression that must match a whole text, as a Lark terminal."""
    return f"/{escape_slashes(without_anchors(pattern))}/"


def escape_slashes(pattern: str) -> str:
    """Escape a regular expression to stand between slashes."""
    return re.sub(r"(\\.)|(/)|(\n)", lambda found: found[1] or (r"\/" if found[2] else r"\n"), pattern, flags=re.DOTALL)


def without_anchors(pattern: str) -> str:
    """Remove a leading `^` and a trailing `$`: patterns match whole texts anyway, and llguidance refuses anchors."""
    pattern = pattern.removeprefix("^")
    if not pattern.endswith("$"):
        return pattern
    body = pattern[:-1]
    num_escapes = len(body) - len(body.rstrip("\\"))
    return pattern if num_escapes % 2 else body
