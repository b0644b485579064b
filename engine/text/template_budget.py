"""What one rendering of a chat template may still use: time, text, size of values.

Who renders does so within `bounded()`; who makes something for the template asks `budget()`. Knows no Jinja but its
namespaces.
"""

from __future__ import annotations

import threading
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

MAX_TEXT_CHARS = 32 * 1024 * 1024  # of one text, the rendered prompt included
MAX_WORK_CHARS = 8 * MAX_TEXT_CHARS  # of all texts made on the way
MAX_RENDER_S = 2.0  # of processor time
MAX_DEPTH = 100  # of nested lists and objects
MAX_BITS = 4_096  # of whole numbers
ATOMS = frozenset({str, int, float, bool, type(None)})

_ITEM_CHARS = 64  # what an item of a list costs, in characters of text
_TICKS_PER_LOOK = 8  # at the clock
_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)


class OverBounds(TemplateError):
    """A template outgrew its bounds, in time or in size."""


class Budget:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self._ticks = 0
        self._chars = 0
        self._num_namespaces = 0
        self._until_s = time.thread_time() + MAX_RENDER_S
        self._weights: dict[int, tuple[int, Any]] = {}  # by identity; holds the value, so that the identity stays its

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % _TICKS_PER_LOOK == 0 and time.thread_time() > self._until_s:
            raise OverBounds("the chat template takes too long")

    def pay(self, chars: int) -> None:
        self._chars += chars
        if self._chars > MAX_WORK_CHARS:
            raise OverBounds("the chat template makes too much text")

    def pay_items(self, count: int) -> None:
        self.pay(_ITEM_CHARS * count)

    def forget_weights(self) -> None:
        """Something has changed that may be a part of what was weighed."""
        self._weights.clear()

    def paid(self, value: Any) -> Any:
        """`value`, which is new, paid for."""
        if isinstance(value, str | bytes):
            self.pay(len(value))
        elif isinstance(value, int):
            refuse_over(value.bit_length(), MAX_BITS)  # dividing or writing a longer one takes the square of its time
        elif isinstance(value, list | tuple | dict):
            self.pay_items(len(value))
        return value

    def weigh(self, value: Any, depth: int = 0) -> int:
        """About how many characters it takes to write `value` out, which may hold one list many times over."""
        if isinstance(value, str | bytes):
            return len(value) + 1
        if isinstance(value, int):
            return 1 + value.bit_length() // 3
        if isinstance(value, Namespace):
            self._num_namespaces += 1  # may weigh more the next time, as will what holds it
            value = dict(value._Namespace__attrs)
        elif not isinstance(value, _CONTAINERS):
            return 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[0]
        self.tick()
        if depth > MAX_DEPTH:
            raise OverBounds("the chat template's values are nested too deep")
        num_namespaces = self._num_namespaces
        parts: Iterable[Any] = (part for pair in value.items() for part in pair) if isinstance(value, dict) else value
        weight = 1 + sum([self.weigh(part, depth + 1) for part in parts])
        refuse_over(weight, MAX_TEXT_CHARS)
        if num_namespaces == self._num_namespaces:
            self._weights[id(value)] = (weight, value)
        return weight


_current = threading.local()


@contextmanager
def bounded() -> Iterator[None]:
    """One template at a time may be compiled or rendered within, by this thread."""
    _current.budget = Budget()
    try:
        yield
    finally:
        del _current.budget


def budget() -> Budget:
    """Of the rendering that this thread is in."""
    current: Budget = _current.budget
    return current


def refuse_over(size: int, most: int) -> None:
    """Raises OverBounds."""
    if size > most:
        raise OverBounds("the chat template's values are too large")
