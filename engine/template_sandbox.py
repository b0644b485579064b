"""The Jinja environment for chat templates: immutable, sandboxed, and bounded in time and memory.

A template comes with a model, from anyone who publishes one, and runs in the process that serves all the others. So
every loop and branch ticks, every text and list that it makes is paid for, nested values are weighed before anything
walks through them in one go, and the few operations that make much out of little are judged beforehand. Otherwise
templates find here what `transformers` gives them. Knows nothing of messages.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from datetime import datetime
from functools import update_wrapper
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

MAX_TEXT_CHARS = 32 * 1024 * 1024  # of one text, the rendered prompt included
MAX_WORK_CHARS = 8 * MAX_TEXT_CHARS  # of all texts made on the way
MAX_RENDER_S = 2.0  # of processor time
MAX_ITEMS = 1_000_000  # of one list that a template makes
MAX_WIDTH = 1_000  # of padding, indentation, precision
MAX_DEPTH = 100  # of nested lists and objects

_ITEM_CHARS = 64  # what an item of a list costs, in characters of text
_MAX_BITS = 4_096  # of whole numbers
_TICKS_PER_LOOK = 8  # at the clock
_ATOMS = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)|[:!][^{}]*(?:\d{4}|\{)")  # both ways of writing a width
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_CUTTING = frozenset({"split", "rsplit", "splitlines"})
_NEVER_CALLED = frozenset({"to_bytes", "translate", "maketrans"})
_SIZED_FILTERS = frozenset({"center", "indent", "batch", "slice", "round", "tojson"})
_LISTING_FILTERS = frozenset({"list", "batch", "slice", "sort", "unique", "groupby", "map"})
_LEFT_OUT = ("urlize", "striptags", "xmlattr", "wordwrap", "pprint")  # of no use for prompts, hard to bound


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

    def paid(self, value: Any) -> Any:
        """`value`, which is new, paid for."""
        if isinstance(value, str):
            self.pay(len(value))
        elif isinstance(value, list | tuple | dict):
            self.pay(_ITEM_CHARS * len(value))
        return value

    def weigh(self, value: Any, depth: int = 0) -> int:
        """About how many characters it takes to write `value` out, which may hold one list many times over."""
        if isinstance(value, str | bytes):
            return len(value) + 1
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
        _refuse_over(weight, MAX_TEXT_CHARS)
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


def _refuse_over(size: int, most: int) -> None:
    if size > most:
        raise OverBounds("the chat template's values are too large")


def _bit_length(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


class _BoundedCode(CodeGenerator):
    """Compiles templates so that they tick, and weigh what they compare, join and use as keys."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.tick()")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - the base class names it
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        self.write("(")
        self._visit_weighed(node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        self.write(f" {_OPERATORS[node.op]} ")
        self._visit_weighed(node.expr, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("{")
        for pair in node.items:
            self._visit_weighed(pair.key, frame)
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("}")

    def _visit_weighed(self, node: nodes.Node, frame: Frame) -> None:
        if isinstance(node, nodes.Const):
            self.visit(node, frame)
            return
        self.write("environment.weighed(")
        self.visit(node, frame)
        self.write(")")


_OPERATORS = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Templates compiled here are to be compiled and rendered within `bounded()`."""

    code_generator_class = _BoundedCode
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalized,
            extensions=[_GenerationBlocks, loopcontrols],
        )
        self.filters["tojson"] = _to_json
        self.filters["sum"] = _sum
        for name in _LEFT_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        filters: dict[str, Any] = dict(self.filters)
        tests: dict[str, Any] = dict(self.tests)
        self.filters = {name: _bounded_filter(name, function) for name, function in filters.items()}
        self.tests = {name: _bounded_filter(f"is {name}", function) for name, function in tests.items()}

        def strftime_now(format: str) -> str:
            return now().strftime(format[:MAX_WIDTH])

        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
            "namespace": _TemplateNamespace,
            "dict": _new_dict,
        }

    def tick(self) -> None:
        _current.budget.tick()

    def weighed(self, value: Any) -> Any:
        """`value`, fit to be compared."""
        if type(value) not in _ATOMS:
            _current.budget.weigh(value)
        return value

    def joined(self, parts: Iterable[Any]) -> str:
        """The texts of an expression with `~`."""
        budget = _current.budget
        texts = [part if isinstance(part, str) else str(self.weighed(part)) for part in parts]
        _refuse_over(sum(map(len, texts)), MAX_TEXT_CHARS)
        text = "".join(texts)
        budget.pay(len(text))
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _current.budget
        if operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                _refuse_over(len(left) + len(right), MAX_TEXT_CHARS)
            elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
                _refuse_over(len(left) + len(right), MAX_ITEMS)
        elif operator == "*":
            _refuse_long_product(left, right)
            _refuse_long_product(right, left)
            _refuse_over(_bit_length(left) + _bit_length(right), _MAX_BITS)
        elif operator == "**":
            power = abs(right) if isinstance(right, int) else 1
            _refuse_over(_bit_length(left) * power, _MAX_BITS)
        elif isinstance(left, str | bytes):
            _refuse_wide_format(left)
            budget.weigh(right)
        return budget.paid(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            _current.budget.weigh(argument)
        found = super().getitem(obj, argument)
        return _current.budget.paid(found) if isinstance(argument, slice) else found

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = _current.budget
        budget.tick()
        for value in (*args, *kwargs.values()):
            if type(value) not in _ATOMS:
                budget.weigh(value)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str | bytes | int):
            args = _judged_method(owner, __obj.__name__, args, kwargs)
        return budget.paid(super().call(__context, __obj, *args, **kwargs))


def _refuse_long_product(sequence: Any, times: Any) -> None:
    if isinstance(times, int) and isinstance(sequence, str | bytes | list | tuple):
        _refuse_over(len(sequence) * times, MAX_TEXT_CHARS if isinstance(sequence, str | bytes) else MAX_ITEMS)


def _refuse_wide_format(text: str | bytes) -> None:
    if _WIDE_FORMAT.search(text if isinstance(text, str) else text.decode("latin-1")):
        raise OverBounds("the chat template formats something too wide")


def _judged_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments for a method of a text or number, once it is known not to make too much of them."""
    if name in _NEVER_CALLED:
        raise OverBounds(f"a chat template may not call {name}")
    if name in _PADDING:
        _refuse_sizes(args, kwargs)
        if name == "expandtabs":
            _refuse_over(len(owner) * max([8, *args, *kwargs.values()]), MAX_TEXT_CHARS)
    elif name == "replace" and len(args) > 1:
        _refuse_long_replacement(owner, *args[:2])
    elif name == "join" and args:
        parts = list(args[0])
        _refuse_over(len(parts), MAX_ITEMS)
        _refuse_over(_current.budget.weigh(parts) + len(parts) * len(owner), MAX_TEXT_CHARS)
        return (parts,)
    elif name in _CUTTING:
        num_pieces = owner.count(args[0]) if args and args[0] else len(owner) // 2
        if num_pieces > MAX_ITEMS // 2:
            _current.budget.pay(_ITEM_CHARS * num_pieces)
    elif name in ("format", "format_map"):
        _refuse_wide_format(owner)
        for value in (*args, *kwargs.values()):
            _current.budget.pay(_current.budget.weigh(value) * owner.count("{"))
    return args


def _refuse_sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int):
            _refuse_over(abs(value), MAX_WIDTH)
        elif isinstance(value, str):
            _refuse_over(len(value), MAX_WIDTH)


def _refuse_long_replacement(text: Any, old: Any, new: Any) -> None:
    _refuse_over(len(text) + text.count(old) * len(new), MAX_TEXT_CHARS)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that is judged before it runs and paid for after."""
    leading = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context or environment comes before the value

    def run(*args: Any, **kwargs: Any) -> Any:
        budget = _current.budget
        budget.tick()
        for value in (*args[leading:], *kwargs.values()):
            if type(value) not in _ATOMS:
                budget.weigh(value)
        if name in _JUDGES or name in _SIZED_FILTERS or name in _LISTING_FILTERS:
            args = (*args[:leading], *_judged_filter(name, args[leading:], kwargs))
        return budget.paid(function(*args, **kwargs))

    return update_wrapper(run, function)


def _judged_filter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    value, rest = args[0], args[1:]
    if name in _SIZED_FILTERS:
        _refuse_sizes(tuple(item for item in rest if not isinstance(item, bool)), kwargs)
    if name in _LISTING_FILTERS and isinstance(value, str):
        _refuse_over(len(value), MAX_ITEMS)
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
    _refuse_over(_current.budget.weigh(value) + len(value) * len(separator), MAX_TEXT_CHARS)
    return (value, *rest)


def _judge_indent(value: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    width = rest[0] if rest else kwargs.get("width", 4)
    size = len(width) if isinstance(width, str) else width
    _refuse_over(len(value) + (value.count("\n") + 1) * size, MAX_TEXT_CHARS)
    return (value, *rest)


def _judge_to_json(value: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    indent = rest[1] if len(rest) > 1 else kwargs.get("indent")
    size = len(indent) if isinstance(indent, str) else indent or 0
    _refuse_over(_current.budget.weigh(value) * (1 + size), 8 * MAX_TEXT_CHARS)
    return (value, *rest)


def _judge_format(value: Any, rest: tuple[Any, ...], _: dict[str, Any]) -> tuple[Any, ...]:
    _refuse_wide_format(str(value))
    return (value, *rest)


_JUDGES: dict[str, Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]] = {
    "replace": _judge_replace,
    "join": _judge_join,
    "indent": _judge_indent,
    "tojson": _judge_to_json,
    "format": _judge_format,
}


class _GenerationBlocks(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the assistant said, for training; here it is just its body,
    in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _TemplateNamespace(Namespace):
    """Takes no names that begin with an underscore, which reach into Python's own workings."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_underscore(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise TemplateError(f"the chat template may not set {name}")


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


@pass_context
def _finalized(_: Context, value: Any) -> Any:
    """What a template prints, as text and paid for. (With a context, so that nothing is printed at compile time.)"""
    budget = _current.budget
    if not isinstance(value, str):
        if type(value) not in _ATOMS:
            budget.weigh(value)
        value = str(value)
    budget.pay(len(value))
    return value


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's own `tojson`, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _sum(iterable: Iterable[Any], attribute: str | None = None, start: float = 0) -> Any:
    """Of numbers alone: lists added one by one take the square of their time."""
    if not isinstance(start, int | float):
        raise TemplateError("sum takes numbers only")
    return sum((item[attribute] for item in iterable) if attribute is not None else iterable, start)
