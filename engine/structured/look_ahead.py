"""A regular expression that looks ahead -> one that means the same and does not, where it can be written briefly.

The parser library has no look-ahead. What an expression admits is a regular language all the same: its automaton is
built state by state from the derivatives of its term, made as small as it goes, and written down as an expression
again. Everything is bounded, since ranks do this too: what is too large is left to be refused. Knows no constraints.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from engine.structured.regex_terms import (
    EMPTY,
    LAST,
    NOTHING,
    Ranges,
    Term,
    Unreadable,
    both,
    either,
    is_nullable,
    joined,
    negated,
    others,
    read,
    star,
    then,
)

_MAX_CHARS = 500
_MAX_STATES = 48
_MAX_STEPS = 8_000  # derivatives, about 15 ms
_MAX_WRITTEN = 4_000  # characters
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_ ,;:=@%&!\"'<>#~`")

_SIGNS = re.compile(r"\\.|[][()|]", re.DOTALL)
_SECONDS = r"\d+([.,]\d+)?S"
_CLOCK = rf"T(\d+H(\d+M)?({_SECONDS})?|\d+M({_SECONDS})?|{_SECONDS})"
# The patterns in which Zod writes e-mail addresses and durations, without their look-around.
_WITHOUT_LOOK_AROUND = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
    ),
    (r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"): (
        rf"^P(\d+W|(\d+Y(\d+M)?(\d+D)?|\d+M(\d+D)?|\d+D)({_CLOCK})?|{_CLOCK})$"
    ),
}

_WITHOUT_WORD = re.compile(r"\^\((?:\?:)?\(\?!(.+)\)\.\)([*+])\$")  # ^((?!word).)*$

Moves = list[dict[int, Ranges]]  # of each state: the states behind it, and by which characters


def looks_ahead(pattern: str) -> bool:
    """Whether it may do so; also where it only spells what looks like that."""
    return "(?=" in pattern or "(?!" in pattern


@functools.lru_cache(maxsize=256)
def without_look_ahead(pattern: str) -> str | None:
    """An expression without it that is found in the same texts; None where there is none, or none that is short."""
    if len(pattern) > _MAX_CHARS:
        return None
    try:
        written = _written(_Automaton(read(pattern)))
    except (Unreadable, RecursionError):
        return None
    return None if written is None or len(written) > _MAX_WRITTEN else f"^{written}$"


def in_parts(pattern: str) -> tuple[list[str], str]:
    """Patterns that must match too, and what is left of this one: `^(?=.*[0-9])(?!.*x).{8,}$`. What looks ahead further
    on stays if it cannot be said without."""
    pattern = _in_one_look(_WITHOUT_LOOK_AROUND.get(pattern, pattern))
    if not looks_ahead(pattern):
        return [], pattern
    ahead, rest = [], pattern.removeprefix("^")
    is_apart = rest != pattern and not has_outer_bar(rest)
    while is_apart and rest.startswith(("(?=", "(?!")):
        end = next((at for at, sign, depth in _signs(rest) if sign == ")" and depth == 1), None)
        if end is None or rest[end + 1 : end + 2] in ("*", "+", "?", "{"):
            return [], pattern
        inside = rest[3:end]
        part = f"^(?:{inside})" if rest.startswith("(?=") and not looks_ahead(inside) else None
        if part is None or "$" in inside:
            part = without_look_ahead(f"^{rest[: end + 1]}") or part
        if part is None:
            return [], pattern
        ahead.append(part)
        rest = rest[end + 1 :]
    rest = "^" + rest if is_apart else pattern
    return ahead, without_look_ahead(rest) or rest if looks_ahead(rest) else rest


def said_plainly(pattern: str) -> str:
    """The same without look-ahead, in one pattern; as it is if that cannot be."""
    return without_look_ahead(_in_one_look(pattern)) or pattern if looks_ahead(pattern) else pattern


def _in_one_look(pattern: str) -> str:
    """`^((?!word).)*$`, the usual way to forbid a word, as what looks once, from the beginning."""
    found = _WITHOUT_WORD.fullmatch(pattern)
    if found is None or "$" in found[1] or looks_ahead(found[1]):
        return pattern
    try:
        read(found[1])  # a whole expression
        is_some = not is_nullable(read(f"^(?:{found[1]})$"))
    except (Unreadable, RecursionError):
        return pattern
    return f"^(?!.*(?:{found[1]})).{found[2]}$" if is_some else pattern


def has_outer_bar(pattern: str) -> bool:
    """Whether its outermost parts are alternatives."""
    return any(sign == "|" and not depth for _, sign, depth in _signs(pattern))


def _signs(pattern: str) -> Iterator[tuple[int, str, int]]:
    """The brackets and bars of a regular expression that mean something: place, sign, and brackets open before it."""
    depth, is_class = 0, False
    for found in _SIGNS.finditer(pattern):
        sign = found[0]
        if is_class or sign[0] == "\\":
            is_class = is_class and sign != "]"
        elif sign == "[":
            is_class = True
        else:
            yield found.start(), sign, depth
            depth += {"(": 1, ")": -1}.get(sign, 0)


class _Automaton:
    """The states of a term, the first of which is its own: how one leads to another, and which may be the last. Those
    that lead nowhere are left out. Raises Unreadable when there are too many."""

    def __init__(self, term: Term) -> None:
        self._num_steps = 0
        self._known: dict[tuple[Term, int], Term] = {}
        classes = list(_classes(term))
        number = {term: 0}
        moves: Moves = []
        for state in (states := [term]):
            found: dict[int, list[tuple[int, int]]] = {}
            for ranges in classes:
                behind = self._behind(state, ranges[0][0])
                if behind not in number:
                    number[behind] = len(number)
                    states.append(behind)
                    if len(number) > _MAX_STATES:
                        raise Unreadable
                found.setdefault(number[behind], []).extend(ranges)
            moves.append({at: joined(ranges) for at, ranges in found.items()})
        self.moves, self.lasts = _smallest(moves, {number[state] for state in number if is_nullable(state)})

    def _behind(self, term: Term, point: int) -> Term:
        """What may follow the character `point` in texts of `term`: its derivative."""
        key = (term, point)
        if key not in self._known:
            self._num_steps += 1
            if self._num_steps > _MAX_STEPS:
                raise Unreadable
            self._known[key] = self._derived(term, point)
        return self._known[key]

    def _derived(self, term: Term, point: int) -> Term:
        kind = term[0]
        if kind == "set":
            return EMPTY if any(first <= point <= last for first, last in term[1]) else NOTHING
        if kind == "then":
            behind = then(self._behind(term[1], point), term[2])
            return either([behind, self._behind(term[2], point)]) if is_nullable(term[1]) else behind
        if kind == "or":
            return either(self._behind(each, point) for each in term[1])
        if kind == "and":
            return functools.reduce(both, (self._behind(each, point) for each in term[1]))
        if kind == "not":
            return negated(self._behind(term[1], point))
        return then(self._behind(term[1], point), term) if kind == "star" else NOTHING


def _classes(term: Term) -> Iterator[Ranges]:
    """Characters that no part of `term` tells apart."""
    sets = list(_sets(term))
    edges = sorted({0} | {edge for ranges in sets for first, last in ranges for edge in (first, last + 1)} - {LAST + 1})
    found: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for first, following in zip(edges, [*edges[1:], LAST + 1], strict=True):
        told = tuple(any(a <= first <= b for a, b in ranges) for ranges in sets)
        found.setdefault(told, []).append((first, following - 1))
    return map(joined, found.values())


def _sets(term: Term) -> set[Ranges]:
    if term[0] == "set":
        return {term[1]}
    inner: Iterable[Term] = term[1] if term[0] in ("or", "and") else term[1:]
    return set().union(*(_sets(each) for each in inner))


def _smallest(moves: Moves, lasts: set[int]) -> tuple[Moves, set[int]]:
    """The automaton with states that mean the same as one, and none that leads nowhere."""
    kind = [int(state in lasts) for state in range(len(moves))]
    while True:
        views = [
            (kind[state], frozenset((kind[at], ranges) for at, ranges in _by_kind(moves[state], kind)))
            for state in range(len(moves))
        ]
        numbers = {view: number for number, view in enumerate(dict.fromkeys(views))}
        finer = [numbers[view] for view in views]
        if len(numbers) == len(set(kind)):
            break
        kind = finer
    kind = finer  # in the order in which they are met: the first stays the first
    merged: Moves = [{} for _ in numbers]
    for state, its in enumerate(kind):
        merged[its] = {kind[at]: ranges for at, ranges in _by_kind(moves[state], kind)}
    ends = {kind[state] for state in lasts}
    alive = set(ends)
    while more := {state for state in range(len(merged)) if state not in alive and alive & merged[state].keys()}:
        alive |= more
    return [
        {at: ranges for at, ranges in its.items() if at in alive} if state in alive else {}
        for state, its in enumerate(merged)
    ], ends


def _by_kind(move: dict[int, Ranges], kind: list[int]) -> list[tuple[int, Ranges]]:
    """One state behind for each kind of states, with all characters that lead to that kind."""
    found: dict[int, list[tuple[int, int]]] = {}
    one: dict[int, int] = {}
    for at, ranges in move.items():
        found.setdefault(kind[at], []).extend(ranges)
        one[kind[at]] = at
    return [(one[its], joined(ranges)) for its, ranges in found.items()]


def _written(automaton: _Automaton) -> str | None:
    """As an expression: states are taken out one by one, and what led through them is written beside. None if nothing
    matches."""
    begin, end = -1, -2
    edges: dict[int, dict[int, Term]] = {begin: {0: EMPTY}, end: {}}
    for state, its in enumerate(automaton.moves):
        edges[state] = {at: ("set", ranges) for at, ranges in its.items()}
        if state in automaton.lasts:
            edges[state][end] = EMPTY
    states = set(range(len(automaton.moves)))
    while states:
        state = min(states, key=lambda state: _weight(edges, state))
        states.remove(state)
        leaving = edges.pop(state)
        again = star(leaving.pop(state, NOTHING))
        for its in edges.values():
            entering = its.pop(state, None)
            if entering is not None:
                for at, term in leaving.items():
                    through = then(then(entering, again), term)
                    its[at] = _or(its[at], through) if at in its else through
                    if _size(its[at]) > _MAX_WRITTEN:
                        raise Unreadable
    found = edges[begin].get(end)
    return None if found is None else _text(found)


def _weight(edges: dict[int, dict[int, Term]], state: int) -> int:
    """About how much longer taking a state out makes what is written."""
    entering = [_size(its[state]) for at, its in edges.items() if at != state and state in its]
    leaving = [_size(term) for at, term in edges[state].items() if at != state]
    loop = _size(edges[state].get(state, EMPTY))
    return (
        sum(entering) * (len(leaving) - 1)
        + sum(leaving) * (len(entering) - 1)
        + loop * (len(entering) * len(leaving) - 1)
    )


def _or(a: Term, b: Term) -> Term:
    parts = [term for each in (a, b) for term in (each[1] if each[0] == "or" else [each])]
    sets = [term for term in parts if term[0] == "set"]
    merged: list[Term] = [("set", joined(pair for term in sets for pair in term[1]))] if sets else []
    return either([*(term for term in parts if term[0] != "set"), *merged])


def _size(term: Term) -> int:
    """Characters that it takes to write, roughly."""
    if term[0] == "set":
        return 2 + 4 * min(len(term[1]), len(others(term[1])))
    inner: Iterable[Term] = term[1] if term[0] == "or" else term[1:]
    return 2 + sum(map(_size, inner))


def _text(term: Term) -> str:
    if term[0] == "set":
        return _class(term[1])
    if term[0] == "then":
        return _text(term[1]) + _text(term[2])
    if term[0] == "star":
        return (_text(term[1]) if term[1][0] == "set" else f"(?:{_text(term[1])})") + "*"
    if term[0] == "or":
        written = sorted(_text(each) for each in term[1] if each != EMPTY)
        return f"(?:{'|'.join(written)})" + ("?" if EMPTY in term[1] else "")
    return ""


def _class(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _spelled(ranges[0][0])
    sign = ""
    if ranges[-1][1] == LAST:
        ranges, sign = others(ranges), "^"
    parts = (_spelled(a) if a == b else f"{_spelled(a)}-{_spelled(b)}" for a, b in ranges)
    return f"[{sign}{''.join(parts)}]" if ranges else r"[\s\S]"


def _spelled(point: int) -> str:
    return chr(point) if chr(point) in _PLAIN else f"\\x{{{point:x}}}"
