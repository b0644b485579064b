"""Error messages of llguidance, rewritten for API clients.

Keeps the names of keywords, rules, types, formats and references. Removes patterns and values, which are the caller's
data: error messages are logged and may be shown to others.
"""

from __future__ import annotations

import re

_POSITION = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_GRAMMAR_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_MAX_CHARS = 300

# A quoted pattern may contain text that looks like the end of llguidance's message, hence the greedy `.*`.
_REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r".*regex parse error: .* error: ", "regex parse error: "),
        (r'invalid regex ".*" \(in \w+\): ', ""),
        (
            r"lookarounds not supported yet; .*",
            "lookarounds are not supported: ^, $ and word boundaries within a pattern",
        ),
        (r"regexes /.*/ and /.*/ are not disjoint", "regexes that one name can match are not supported"),
        (r"(retrieving it failed): .*", r"\1"),
        (r"(Expected [\w ]+ for '[\w$]+'(?: item)?), got .*", r"\1"),
        (r"unknown field `.*`, expected .*", "'x-guidance' has an unknown field"),
        (r"Regex is empty: .*", "no text is left"),
        (r"NoExtension.*", "no text matches it"),
        (r"(has too many digits|not JSON serializable): .*", r"\1"),
        (r"Failed to generate regex for float range: .*", "a range of numbers is too large"),
        (r"(at line \d+), .*", r"\1"),
        (r" \(at .*", ""),
        (r"(Unknown format|Invalid type): .{33,}", r"\1"),
        (r"(?P<quote>[\"'/`]).{65,}(?P=quote)", "…"),
    )
]


def readable_error(message: str) -> str:
    """Return llguidance's error message as one short line without the caller's data."""
    message = _GRAMMAR_EXCERPT.sub("", _POSITION.sub("", message))
    line = " ".join(message.partition("<state>")[0].split())
    for pattern, replacement in _REPLACEMENTS:
        line = pattern.sub(replacement, line)
    return line[:_MAX_CHARS]
