"""Renders the templates of the Helm chart with the part of Go's template language that they use.

For machines without `helm`. An unknown function or keyword is an error, so that a template which needs more is noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}(\s*)", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|\||:=|,|[^\s()|,]+')


class TemplateError(Exception):
    """A template uses something that this renderer does not know."""


@dataclass
class Node:
    """Text, or an action with its bodies. `kind` is text, print, if, range, with, define or root."""

    kind: str
    text: str = ""
    body: list[Node] = field(default_factory=list)
    otherwise: list[Node] = field(default_factory=list)


def _pieces(source: str) -> Iterator[tuple[bool, str]]:
    """Yield (is an action, text) with white space trimmed as `{{-` and `-}}` ask."""
    position, trims_next = 0, False
    for match in _ACTION.finditer(source):
        text = source[position : match.start()] + match[1]
        if trims_next:
            text = text.lstrip()
        yield False, text.rstrip() if match[2] else text
        yield True, match[3]
        trims_next = bool(match[4])
        position = match.end() - len(match[5])
    rest = source[position:]
    yield False, rest.lstrip() if trims_next else rest


def parse(source: str) -> Node:
    root = Node("root")
    stack: list[tuple[Node, list[Node]]] = [(root, root.body)]
    for is_action, text in _pieces(source):
        node, into = stack[-1]
        keyword, _, rest = text.partition(" ")
        if not is_action:
            into.append(Node("text", text))
        elif keyword in ("if", "range", "with", "define"):
            made = Node(keyword, rest)
            into.append(made)
            stack.append((made, made.body))
        elif keyword == "else" and not rest:
            stack[-1] = (node, node.otherwise)
        elif keyword == "end":
            stack.pop()
        else:
            into.append(Node("print", text))
    if len(stack) != 1:
        raise TemplateError(f"{stack[-1][0].kind} without end")
    return root


def _to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=False, sort_keys=True).rstrip("\n")


def _indent(width: int, text: str) -> str:
    return "\n".join(" " * width + line for line in text.splitlines())


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quote": lambda value: json.dumps(str(value)),
    "toYaml": _to_yaml,
    "nindent": lambda width, text: "\n" + _indent(width, text),
    "default": lambda fallback, value: value or fallback,
    "not": lambda value: not value,
    "add": lambda *numbers: sum(numbers),
}


class Renderer:
    """Renders templates of one chart."""

    def __init__(self) -> None:
        self._defined: dict[str, list[Node]] = {}

    def define(self, source: str) -> None:
        """Remember the `define` blocks of a file."""
        for node in parse(source).body:
            if node.kind == "define":
                self._defined[node.text.strip('"')] = node.body

    def render(self, source: str, root: dict[str, Any]) -> str:
        return self._render(parse(source).body, root, {"$": root})

    def _render(self, nodes: list[Node], dot: Any, variables: dict[str, Any]) -> str:
        return "".join(self._render_one(node, dot, variables) for node in nodes)

    def _render_one(self, node: Node, dot: Any, variables: dict[str, Any]) -> str:
        if node.kind == "text":
            return node.text
        if node.kind == "print":
            value = self._evaluate(node.text, dot, variables)
            return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
        if node.kind == "define":
            return ""
        if node.kind == "range":
            return self._render_range(node, dot, variables)
        value = self._evaluate(node.text, dot, variables)
        if not value:
            return self._render(node.otherwise, dot, variables)
        return self._render(node.body, value if node.kind == "with" else dot, variables)

    def _render_range(self, node: Node, dot: Any, variables: dict[str, Any]) -> str:
        match = re.fullmatch(r"(\$\w+), (\$\w+) := (.*)", node.text)
        if match is None:
            raise TemplateError(f"range {node.text}")
        rows = self._evaluate(match[3], dot, variables) or {}
        return "".join(
            self._render(node.body, value, {**variables, match[1]: key, match[2]: value})
            for key, value in sorted(rows.items())
        )

    def _evaluate(self, text: str, dot: Any, variables: dict[str, Any]) -> Any:
        tokens = _TOKEN.findall(text)
        value: tuple[Any, ...] = ()
        while tokens:
            end = tokens.index("|") if "|" in tokens else len(tokens)
            value = (self._command(tokens[:end], value, dot, variables),)
            tokens = tokens[end + 1 :]
        return value[0]

    def _command(self, words: list[str], piped: tuple[Any, ...], dot: Any, variables: dict[str, Any]) -> Any:
        head, *rest = words
        values = [self._operand(word, dot, variables) for word in rest]
        if head == "include":
            return self._render(self._defined[values[0]], values[1], {"$": values[1]})
        if head in FUNCTIONS:
            return FUNCTIONS[head](*values, *piped)
        if rest or piped:
            raise TemplateError(f"function {head}")
        return self._operand(head, dot, variables)

    def _operand(self, word: str, dot: Any, variables: dict[str, Any]) -> Any:
        if word.startswith('"'):
            return json.loads(word)
        if word.lstrip("-").isdigit():
            return int(word)
        head, *names = word.split(".")
        if head and head not in variables:
            raise TemplateError(f"operand {word}")
        value = variables[head] if head else dot
        for name in filter(None, names):
            if not isinstance(value, dict):
                raise TemplateError(f"{word}: {name} of a value that is no map")
            value = value.get(name)
        return value


def render_chart(chart: Path, values: dict[str, Any], release: str = "hearth") -> list[dict[str, Any]]:
    """Return the objects that the chart makes of these values."""
    facts = yaml.safe_load((chart / "Chart.yaml").read_text())
    root = {
        "Values": values,
        "Release": {"Name": release, "Namespace": "default", "Service": "Helm"},
        "Chart": {"Name": facts["name"], "Version": facts["version"], "AppVersion": facts["appVersion"]},
    }
    renderer = Renderer()
    for file in sorted((chart / "templates").glob("*.tpl")):
        renderer.define(file.read_text())
    texts = [renderer.render(file.read_text(), root) for file in sorted((chart / "templates").glob("*.yaml"))]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]
