"""Regular expressions as terms of sets of characters: read from their text, and written as text again.

What is read is what ECMA's dialect and Rust's have in common, and look-ahead; a reader is told what follows a part, so
that what looks ahead is a plain intersection: `a(?!b)c` is `a` before what is `c` and does not begin with `b`. Words,
digits and spaces are ASCII's, as in ECMA, but for spaces. Knows no constraints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

LAST = 0x10FFFF
MAX_COPIES = 400  # of parts, counts written out

Ranges = tuple[tuple[int, int], ...]  # code points, in order, no two of them neighbours
Term = tuple[
    Any, ...
]  # ("set", ranges) | ("then", a, b) | ("or", {…}) | ("and", {…}) | ("not", a) | ("star", a) | EMPTY

EMPTY: Term = ("empty",)
ANY: Ranges = ((0, LAST),)
NOTHING: Term = ("set", ())

_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = (
    (9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_NAMED = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_CODE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
_COUNT = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")
_GROUP = re.compile(r"\?:|\?=|\?!|\?<(?![=!])[^>]*>|(?!\?)")


class Unreadable(Exception):
    """The expression has a part that this file does not read, or is too large for it."""


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Any ranges, in order and without overlap."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def others(ranges: Ranges) -> Ranges:
    """All other characters."""
    firsts = [0, *(last + 1 for _, last in ranges)]
    lasts = [*(first - 1 for first, _ in ranges), LAST]
    return tuple((first, last) for first, last in zip(firsts, lasts, strict=True) if first <= last)


def then(a: Term, b: Term) -> Term:
    if NOTHING in (a, b):
        return NOTHING
    if a == EMPTY:
        return b
    if b == EMPTY:
        return a
    return ("then", a[1], then(a[2], b)) if a[0] == "then" else ("then", a, b)


def either(terms: Iterable[Term]) -> Term:
    found: set[Term] = set()
    for term in terms:
        found |= term[1] if term[0] == "or" else {term}
    found.discard(NOTHING)
    if ANYTHING in found:
        return ANYTHING
    return NOTHING if not found else found.pop() if len(found) == 1 else ("or", frozenset(found))


def both(a: Term, b: Term) -> Term:
    found = (a[1] if a[0] == "and" else {a}) | (b[1] if b[0] == "and" else {b})
    if NOTHING in found:
        return NOTHING
    found -= {ANYTHING}
    return ANYTHING if not found else next(iter(found)) if len(found) == 1 else ("and", frozenset(found))


def star(a: Term) -> Term:
    return EMPTY if a in (EMPTY, NOTHING) else a if a[0] == "star" else ("star", a)


def negated(a: Term) -> Term:
    if a[0] == "not":
        return a[1]  # type: ignore[no-any-return]
    return ANYTHING if a == NOTHING else NOTHING if a == ANYTHING else ("not", a)


ANYTHING: Term = ("star", ("set", ANY))

Next = Callable[[Term], Term]  # what follows a part -> the part, and that


def read(pattern: str) -> Term:
    """Whole texts in which `pattern` is found somewhere, as JSON Schema means it. Raises Unreadable."""
    return _Reader(pattern).whole()


@dataclass
class _Reader:
    """Goes through a pattern once; each part becomes a function of what follows it."""

    pattern: str
    at: int = 0
    num_copies: int = 0

    def whole(self) -> Term:
        found: list[Term] = []
        while not found or self._take("|"):
            is_anchored = self._take("^")
            texts = self._sequence()(ANYTHING)
            found.append(texts if is_anchored else then(ANYTHING, texts))
        if self.at < len(self.pattern):
            raise Unreadable
        return either(found)

    def _looking_at(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        if not self._looking_at(text):
            return False
        self.at += len(text)
        return True

    def _alternatives(self) -> list[Next]:
        found = [self._sequence()]
        while self._take("|"):
            found.append(self._sequence())
        return found

    def _sequence(self) -> Next:
        parts: list[Next] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in ("|", ")"):
            parts.append(self._repeated())

        def follow(rest: Term) -> Term:
            for part in reversed(parts):
                rest = part(rest)
            return rest

        return follow

    def _repeated(self) -> Next:
        begin = self.at
        part = self._part()
        is_looking = self.pattern.startswith(("(?=", "(?!", "$"), begin)
        least, most = self._count()
        if (least, most) == (1, 1):
            return part
        inside = self.pattern[begin : self.at]
        if is_looking or "(?=" in inside or "(?!" in inside or "$" in inside.replace("\\$", ""):
            raise Unreadable  # what a round of it sees depends on the next
        once = part(EMPTY)
        self.num_copies += least if most is None else most
        if self.num_copies > MAX_COPIES:
            raise Unreadable
        tail = star(once) if most is None else EMPTY
        for _ in range(0 if most is None else most - least):
            tail = either([EMPTY, then(once, tail)])
        for _ in range(least):
            tail = then(once, tail)
        return lambda rest: then(tail, rest)

    def _count(self) -> tuple[int, int | None]:
        """How often the part before may come; None: any number of times."""
        counts: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        sign = self.pattern[self.at : self.at + 1]
        if sign in counts and sign:
            self.at += 1
            found = counts[sign]
        elif (count := _COUNT.match(self.pattern, self.at)) is not None:
            self.at = count.end()
            least = int(count[1])
            found = (least, least if count[2] is None else int(count[3]) if count[3] else None)
            if found[1] is not None and found[1] < least:
                raise Unreadable
        else:
            return 1, 1
        self._take("?")  # which match is preferred is of no matter
        if self.pattern[self.at : self.at + 1] in ("*", "+", "?"):
            raise Unreadable
        return found

    def _part(self) -> Next:
        sign = self.pattern[self.at]
        if sign == "(":
            return self._group()
        if sign == "$":
            self.at += 1
            return lambda rest: EMPTY if is_nullable(rest) else NOTHING
        if sign in "^*+?{}]":
            raise Unreadable
        if sign == "[":
            characters = self._class()
        elif sign == "\\":
            characters = self._escaped()
        else:
            self.at += 1
            characters = others(((10, 10),)) if sign == "." else ((ord(sign), ord(sign)),)
        return lambda rest: then(("set", characters), rest)

    def _group(self) -> Next:
        self.at += 1
        kind = _GROUP.match(self.pattern, self.at)
        if kind is None:
            raise Unreadable
        self.at = kind.end()
        parts = self._alternatives()
        if not self._take(")"):
            raise Unreadable
        if kind[0] == "?=":
            ahead = either(part(ANYTHING) for part in parts)
            return lambda rest: both(ahead, rest)
        if kind[0] == "?!":
            ahead = negated(either(part(ANYTHING) for part in parts))
            return lambda rest: both(ahead, rest)
        return lambda rest: either(part(rest) for part in parts)

    def _escaped(self) -> Ranges:
        """What stands behind a backslash."""
        sign = self.pattern[self.at + 1 : self.at + 2]
        self.at += 2
        if sign.lower() in _NAMED and sign:
            ranges = _NAMED[sign.lower()]
            return ranges if sign.islower() else others(ranges)
        if sign in _CONTROLS and sign:
            if sign == "0" and self.pattern[self.at : self.at + 1].isdigit():
                raise Unreadable
            return ((_CONTROLS[sign],) * 2,)
        if sign in ("x", "u"):
            code = _CODE.match(self.pattern, self.at - 1)
            if code is None:
                raise Unreadable
            self.at = code.end()
            value = int(code[1] or code[2], 16)
            return ((value, value),)
        if not sign or sign.isalnum():
            raise Unreadable
        return ((ord(sign), ord(sign)),)

    def _class(self) -> Ranges:
        self.at += 1
        is_negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._looking_at("]"):
            if (
                self.at >= len(self.pattern)
                or self._looking_at("[")
                or self.pattern[self.at : self.at + 2] in _SET_SIGNS
            ):
                raise Unreadable
            first = self._in_class()
            is_range = self._looking_at("-") and not self._looking_at("-]")
            if is_range:
                self.at += 1
                last = self._in_class()
                if not (len(first) == len(last) == 1 and first[0][0] == first[0][1] <= last[0][0] == last[0][1]):
                    raise Unreadable
                first = ((first[0][0], last[0][0]),)
            found += first
        self.at += 1
        if not found:
            raise Unreadable  # dialects differ
        return others(joined(found)) if is_negated else joined(found)

    def _in_class(self) -> Ranges:
        sign = self.pattern[self.at : self.at + 1]
        if sign == "\\":
            if self.pattern[self.at + 1 : self.at + 2] == "b":
                raise Unreadable
            return self._escaped()
        if not sign or sign in "[]":
            raise Unreadable
        self.at += 1
        return ((ord(sign), ord(sign)),)


_SET_SIGNS = ("&&", "--", "~~")  # which mean something in Rust's dialect alone


def is_nullable(term: Term) -> bool:
    """Whether the empty text is one of its."""
    kind = term[0]
    if kind == "then":
        return is_nullable(term[1]) and is_nullable(term[2])
    if kind == "or":
        return any(map(is_nullable, term[1]))
    if kind == "and":
        return all(map(is_nullable, term[1]))
    if kind == "not":
        return not is_nullable(term[1])
    return kind in ("empty", "star")
