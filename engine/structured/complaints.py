"""The parser library's complaint about a constraint -> what is wrong with it, without the caller's own texts.

It names keywords, rules, types, formats and references, and shows no pattern and no value. Knows the library's
sentences; what it says beside them is cut where it quotes at length.
"""

from __future__ import annotations

import re

_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)  # of the grammar that we wrote
_MAX_CHARS = 300

# A pattern or a text may hold anything, also what looks like the end of the library's sentence: up to the last such.
_IN_OTHER_WORDS = [
    (re.compile(pattern), words)
    for pattern, words in (
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
        (r"(has too many digits|not JSON serializable): .*", r"\1"),
        (r"Failed to generate regex for float range: .*", "a range of numbers is too large"),
        (r"(at line \d+), .*", r"\1"),
        (r" \(at .*", ""),
        (r"(Unknown format|Invalid type): .{33,}", r"\1"),
        (r"(?P<quote>[\"'/`]).{65,}(?P=quote)", "…"),
    )
]


def in_own_words(complaint: str) -> str:
    """The complaint in one short line."""
    told = _EXCERPT.sub("", _PLACE.sub("", complaint))
    line = " ".join(told.partition("<state>")[0].split())
    for pattern, words in _IN_OTHER_WORDS:
        line = pattern.sub(words, line)
    return line[:_MAX_CHARS]
