"""The Jinja environment for chat templates: immutable, sandboxed, and bounded in time and memory.

A template comes with a model, from anyone who publishes one, and runs in the process that serves all the others. So
every loop and branch ticks, every text and list that it makes is paid for, nested values are weighed before anything
walks through them in one go (`budget.py`), and the few operations that make much out of little are judged beforehand
(`judges.py`). Otherwise templates find here what `transformers` gives them. Knows nothing of messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import update_wrapper
from typing import Any, NoReturn, SupportsIndex

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from engine.text.template_budget import ATOMS, MAX_TEXT_CHARS, budget, refuse_over
from engine.text.template_judges import JUDGED_FILTERS, MAX_WIDTH, judge_operation, judged_filter, judged_method

_LEFT_OUT = ("urlize", "striptags", "xmlattr", "wordwrap", "pprint")  # of no use for prompts, hard to bound


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

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self.write("environment.own_list(")
        super().visit_List(node, frame)
        self.write(")")

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


class _OwnList(list[Any]):
    """A list that the template spelled itself. It may grow and shrink: some templates keep count of calls in one."""

    def append(self, value: Any) -> None:
        budget().pay_items(1)
        budget().forget_weights()
        super().append(value)

    def pop(self, index: SupportsIndex = -1) -> Any:
        budget().pay_items(len(self))  # what stands behind it moves up
        budget().forget_weights()
        return super().pop(index)


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
        budget().tick()

    def own_list(self, values: list[Any]) -> list[Any]:
        return _OwnList(values)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """A conversation stays as it is; what a template spelled itself is its own."""
        return (type(obj) is _OwnList and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def weighed(self, value: Any) -> Any:
        """`value`, fit to be compared."""
        if type(value) not in ATOMS:
            budget().weigh(value)
        return value

    def joined(self, parts: Iterable[Any]) -> str:
        """The texts of an expression with `~`."""
        spent = budget()
        texts = [part if isinstance(part, str) else str(self.weighed(part)) for part in parts]
        refuse_over(sum(map(len, texts)), MAX_TEXT_CHARS)
        text = "".join(texts)
        spent.pay(len(text))
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        judge_operation(operator, left, right)
        return budget().paid(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            budget().weigh(argument)
        found = super().getitem(obj, argument)
        return budget().paid(found) if isinstance(argument, slice) else found

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        spent = budget()
        spent.tick()
        for value in (*args, *kwargs.values()):
            if type(value) not in ATOMS:
                spent.weigh(value)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str | bytes | int):
            args = judged_method(owner, __obj.__name__, args, kwargs)
        return spent.paid(super().call(__context, __obj, *args, **kwargs))


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that is judged before it runs and paid for after."""
    leading = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context or environment comes before the value

    def run(*args: Any, **kwargs: Any) -> Any:
        spent = budget()
        spent.tick()
        for value in (*args[leading:], *kwargs.values()):
            if type(value) not in ATOMS:
                spent.weigh(value)
        if name in JUDGED_FILTERS:
            args = (*args[:leading], *judged_filter(name, args[leading:], kwargs))
        return spent.paid(function(*args, **kwargs))

    return update_wrapper(run, function)


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
    spent = budget()
    if not isinstance(value, str):
        if type(value) not in ATOMS:
            spent.weigh(value)
        value = str(value)
    spent.pay(len(value))
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
