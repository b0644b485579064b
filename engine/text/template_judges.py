"""What a chat template asks of Python's own methods and of Jinja's filters, judged before it is done.

Most of them make about as much as they are given, which is paid for afterwards. Here are the few that make much out of
little, or that take the square of their time, in one go that no tick interrupts. Raises OverBounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from engine.text.template_budget import (
    MAX_BITS,
    MAX_TEXT_CHARS,
    MAX_WORK_CHARS,
    OverBounds,
    budget,
    refuse_over,
)

MAX_ITEMS = 1_000_000  # of one list that a template makes
MAX_WIDTH = 1_000  # of padding, indentation, precision

# Both ways of writing a width. Linear: a stretch that it looks through holds no place to begin another.
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)|[:!][^{}:!]*(?:\d{4}|\{)")
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_CUTTING = frozenset({"split", "rsplit", "splitlines"})
_LOOKING_BACK = frozenset({"rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip"})
_NEVER_CALLED = frozenset({"to_bytes", "translate", "maketrans", "striptags"})
_SIZED_FILTERS = frozenset({"center", "indent", "batch", "slice", "round", "tojson"})
_LISTING_FILTERS = frozenset(
    {"list", "batch", "slice", "sort", "unique", "groupby", "map", "title", "wordcount", "urlencode"}
)


def judge_operation(operator: str, left: Any, right: Any) -> None:
    """Of two values, one of `+ * ** %`."""
    if operator == "+":
        if isinstance(left, str) and isinstance(right, str):
            refuse_over(len(left) + len(right), MAX_TEXT_CHARS)
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            refuse_over(len(left) + len(right), MAX_ITEMS)
    elif operator == "*":
        _refuse_long_product(left, right)
        _refuse_long_product(right, left)
        refuse_over(_bit_length(left) + _bit_length(right), MAX_BITS)
    elif operator == "**":
        power = abs(right) if isinstance(right, int) else 1
        refuse_over(_bit_length(left) * power, MAX_BITS)
    elif isinstance(left, str | bytes):
        _refuse_large_format(left, right)


def _bit_length(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _refuse_long_product(sequence: Any, times: Any) -> None:
    if isinstance(times, int) and isinstance(sequence, str | bytes | list | tuple):
        refuse_over(len(sequence) * times, MAX_TEXT_CHARS if isinstance(sequence, str | bytes) else MAX_ITEMS)


def _refuse_large_format(text: str | bytes, values: Any) -> None:
    """Every field may be as wide as a width can be written, and may write out all the values."""
    text = text if isinstance(text, str) else text.decode("latin-1")
    if _WIDE_FORMAT.search(text):
        raise OverBounds("the chat template formats something too wide")
    num_fields = text.count("%") + text.count("{")
    refuse_over(num_fields * max(MAX_WIDTH, budget().weigh(values)), MAX_TEXT_CHARS)


def judged_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments for a method of a text or number, once it is known not to make too much of them."""
    if name in _NEVER_CALLED:
        raise OverBounds(f"a chat template may not call {name}")
    if name in _LOOKING_BACK:
        _refuse_long_search(owner, (*args, *kwargs.values()))
    if name in _PADDING:
        _refuse_sizes(args, kwargs)
        if name == "expandtabs":
            refuse_over(len(owner) * max([8, *args, *kwargs.values()]), MAX_TEXT_CHARS)
    elif name == "replace" and len(args) > 1:
        _refuse_long_replacement(owner, *args[:2])
    elif name == "join" and args:
        parts = list(args[0])
        refuse_over(len(parts), MAX_ITEMS)
        refuse_over(budget().weigh(parts) + len(parts) * len(owner), MAX_TEXT_CHARS)
        return (parts,)
    elif name in _CUTTING:
        num_pieces = owner.count(args[0]) if args and args[0] else len(owner) // 2
        if num_pieces > MAX_ITEMS // 2:
            budget().pay_items(num_pieces)
    elif name in ("format", "format_map"):
        _refuse_large_format(owner, (*args, *kwargs.values()))
    return args


def _refuse_sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int):
            refuse_over(abs(value), MAX_WIDTH)
        elif isinstance(value, str):
            refuse_over(len(value), MAX_WIDTH)


def _refuse_long_search(text: Any, arguments: tuple[Any, ...]) -> None:
    """Python looks from the end, and for any of several characters, in the product of both lengths."""
    longest = max((len(sought) for sought in arguments if isinstance(sought, str | bytes)), default=0)
    refuse_over(len(text) * longest, MAX_WORK_CHARS)


def _refuse_long_replacement(text: Any, old: Any, new: Any) -> None:
    refuse_over(len(text) + text.count(old) * len(new), MAX_TEXT_CHARS)


def judged_filter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments for a filter, the value first, once it is known not to make too much of them."""
    value, rest = args[0], args[1:]
    if name in _SIZED_FILTERS:
        _refuse_sizes(tuple(item for item in rest if not isinstance(item, bool)), kwargs)
    if name in _LISTING_FILTERS and isinstance(value, str):
        refuse_over(len(value), MAX_ITEMS)
    judge = _JUDGES.get(name)
    return judge(value, rest, kwargs) if judge else args


def _judge_replace(value: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    old = str(rest[0] if rest else kwargs.get("old", ""))
    new = str(rest[1] if len(rest) > 1 else kwargs.get("new", ""))
    _refuse_long_replacement(str(value), old, new)
    return (value, *rest)


def _judge_join(value: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    value = value if isinstance(value, list | tuple | str) else list(value)
    separator = str(rest[0] if rest else kwargs.get("d", ""))
    refuse_over(budget().weigh(value) + len(value) * len(separator), MAX_TEXT_CHARS)
    return (value, *rest)


def _judge_indent(value: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    width = rest[0] if rest else kwargs.get("width", 4)
    size = len(width) if isinstance(width, str) else width
    refuse_over(len(value) + (value.count("\n") + 1) * size, MAX_TEXT_CHARS)
    return (value, *rest)


def _judge_to_json(value: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    indent = rest[1] if len(rest) > 1 else kwargs.get("indent")
    size = len(indent) if isinstance(indent, str) else indent or 0
    refuse_over(budget().weigh(value) * (1 + size), 8 * MAX_TEXT_CHARS)
    return (value, *rest)


def _judge_format(value: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    _refuse_large_format(str(value), (*rest, *kwargs.values()))
    return (value, *rest)


def _judge_trim(value: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    value = str(value)
    _refuse_long_search(value, (*rest, *kwargs.values()))
    return (value, *rest)


def _judge_urlencode(value: Any, rest: tuple[Any, ...], _: dict[str, Any]) -> tuple[Any, ...]:
    refuse_over(budget().weigh(value), MAX_ITEMS)
    return (value, *rest)


_JUDGES: dict[str, Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]] = {
    "replace": _judge_replace,
    "join": _judge_join,
    "indent": _judge_indent,
    "tojson": _judge_to_json,
    "format": _judge_format,
    "trim": _judge_trim,
    "urlencode": _judge_urlencode,
}

JUDGED_FILTERS = _SIZED_FILTERS | _LISTING_FILTERS | _JUDGES.keys()
