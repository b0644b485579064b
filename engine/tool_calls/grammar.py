"""Grammars that limit a model's output to calls of the given tools (Lark).

If the model may choose, the grammar is lazy: free text until the mark that opens a call, then a call whose arguments
match the tool's schema. Reasoning before the output is free text up to its closing mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.protocol.output_format import Constraint
from engine.protocol.tools import Tool
from engine.structured.compile import JSON_OPTIONS
from engine.structured.json_schema import ANY_OBJECT, adapt_schema
from engine.structured.lark import as_lark, escape_slashes, lark_regex
from engine.tool_calls.family import Family, RuleWriter, quoted
from engine.tool_calls.free_text import containing, text_until, text_without, with_control_tokens
from engine.tool_calls.harmony import MESSAGE, HarmonyCalls, harmony_rules
from engine.tool_calls.reasoning import Phase, Reasoning

# As `json.dumps` writes, which is what models were shown in training.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class Controls:
    """The control tokens that grammars need: ids of marks by their text, and ids of other control tokens that may
    appear in text (`<think>`)."""

    marks: Mapping[str, int]
    in_text: Collection[int] = ()

    def literal(self, text: str, marks: Collection[str]) -> str:
        """Return text as the grammar spells it, with control tokens for those of `marks` that are control tokens."""
        return with_control_tokens(text, marks, self.marks)


@dataclass(frozen=True)
class ReasoningState:
    """The reasoning format of a model that may reason first, and the phase at the end of the prompt."""

    reasoning: Reasoning
    phase: Phase


def can_be_lazy(family: Family, controls: Controls) -> bool:
    """Return True if the grammar can tell text from the beginning of a call: the opening is a control token and always
    present."""
    if isinstance(family, HarmonyCalls):
        return MESSAGE in controls.marks
    return not family.is_bare and family.opening in controls.marks


def required_calls(
    family: Family,
    tools: Sequence[Tool],
    controls: Controls,
    *,
    is_parallel: bool,
    is_loose: bool,
    thinking: ReasoningState | None = None,
) -> Constraint:
    """Return a grammar for one call of one of `tools` or, if parallel, several, and no other text. `is_loose`: only
    arguments of strict tools must match their schema. Raises UnsupportedSchema."""
    rules = _calls(family, tools, controls, is_parallel, is_loose)
    if isinstance(family, HarmonyCalls):
        return Constraint("grammar", harmony_rules(controls.marks, "calls") + rules)
    return _grammar("calls", rules, controls, thinking)


def lazy_calls(
    family: Family,
    tools: Sequence[Tool],
    controls: Controls,
    output_format: Constraint | None,
    *,
    is_parallel: bool,
    is_loose: bool,
    thinking: ReasoningState | None = None,
) -> Constraint:
    """Return a grammar for text with or without calls after it; with a JSON `output_format`, for either the JSON or
    calls. Raises UnsupportedSchema."""
    calls = _calls(family, tools, controls, is_parallel, is_loose)
    if isinstance(family, HarmonyCalls):
        rules = "" if output_format is None else _format_rules(output_format)
        return Constraint(
            "grammar",
            harmony_rules(controls.marks, "text or calls" if output_format is None else "format or calls")
            + rules
            + calls,
        )
    if output_format is None:
        return _grammar("text calls?", _text(family.opening, controls, thinking) + calls, controls, thinking)
    body = _framed_format(controls, thinking)
    return _grammar(f"{body} | calls", _format_rules(output_format) + calls, controls, thinking)


def format_after_reasoning(output_format: Constraint, controls: Controls, thinking: ReasoningState) -> Constraint:
    """Return a grammar for output that matches `output_format` after the reasoning."""
    return _grammar(_framed_format(controls, thinking), _format_rules(output_format), controls, thinking)


def harmony_format(output_format: Constraint, controls: Controls) -> Constraint:
    """Return a grammar for harmony output whose final channel matches `output_format`."""
    return Constraint("grammar", harmony_rules(controls.marks, "format") + _format_rules(output_format))


def _grammar(body: str, rules: str, controls: Controls, thinking: ReasoningState | None) -> Constraint:
    """Return the grammar of `body`, with reasoning before it if the phase allows reasoning."""
    if thinking is None or thinking.phase == "content":
        return Constraint("grammar", f"start: {body}\n{rules}")
    reasoning = thinking.reasoning
    own = {controls.marks[mark] for mark in reasoning.marks if mark in controls.marks}
    asides = sorted(set(controls.in_text) - own)
    begin = "" if thinking.phase == "reasons" else controls.literal(reasoning.opening, reasoning.marks)
    head = f"start: reasoning{'?' * (thinking.phase == 'may_reason')} body\nbody: {body}\n"
    line = f'reasoning: {begin} thoughts ("\\n" "\\n"?)?\n'
    free = text_until("thoughts", reasoning.closing, reasoning.marks, controls.marks, asides)
    return Constraint("grammar", head + line + free + rules)


def _format_rules(output_format: Constraint) -> str:
    """Return the rule `formatted`: text that matches the output format."""
    if output_format.kind == "regex":
        return f"formatted: FORMATTED\nFORMATTED: {lark_regex(output_format.text)}\n"
    if output_format.kind == "choice":
        return f"formatted: {' | '.join(map(quoted, json.loads(output_format.text)))}\n"
    if output_format.kind == "grammar":
        return f"formatted: %lark {{\n{as_lark(output_format.text)}\n}}\n"
    schema = ANY_OBJECT if output_format.kind == "json_object" else _adapted(output_format.text)
    return f"formatted: %json {quoted({**schema, 'x-guidance': JSON_OPTIONS})}\n"


def _framed_format(controls: Controls, thinking: ReasoningState | None) -> str:
    """Return the body `formatted`, between the marks that some models put around it."""
    if thinking is None or not thinking.reasoning.content_opening:
        return "formatted"
    marks = thinking.reasoning.marks
    begin = controls.literal(thinking.reasoning.content_opening, marks)
    end = controls.literal(thinking.reasoning.content_closing, marks)
    return f"({begin})? formatted ({end})?"


def _adapted(schema: str) -> dict[str, Any]:
    found = json.loads(schema)
    return adapt_schema(found) if isinstance(found, dict) else {}


def _text(opening: str, controls: Controls, thinking: ReasoningState | None) -> str:
    """Return the rule `text`: text without the opening of calls, with the control tokens that may appear in text."""
    unless, in_text = containing(opening), set(controls.in_text)
    if thinking is not None:
        reasoning = thinking.reasoning
        in_text -= {controls.marks.get(mark, -1) for mark in reasoning.marks}
        for mark in (reasoning.content_opening, reasoning.content_closing):
            in_text |= {controls.marks[mark]} if mark in controls.marks else set()
        if thinking.phase == "may_reason":
            unless += rf" & ~/\s*{escape_slashes(re.escape(reasoning.opening))}(?s:.*)/"
    return text_without("text", unless, sorted(in_text))


def _calls(family: Family, tools: Sequence[Tool], controls: Controls, is_parallel: bool, is_loose: bool) -> str:
    def literal(text: str) -> str:
        return controls.literal(text, family.marks)

    opening = "" if family.is_bare else family.opening
    line = '"\\n"? ' if family.has_free_line_between else ""
    closed = f"call {literal(family.closing)}"
    more = f"({line}{literal(family.between)} {closed})*" if is_parallel else ""
    rules = [
        f"calls: {literal(opening + family.head)} {closed} {more} {literal(family.tail)}",
        "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
    ]
    for index, tool in enumerate(tools):
        options = {**_SPACING, "lenient": not tool.is_strict, "coerce_one_of": not tool.is_strict}
        writer = RuleWriter(literal, controls.marks, options)
        rules += family.call_rules(index, tool.name, _arguments(tool, is_loose=is_loose), writer)
    return "\n".join(rules) + "\n"


def _arguments(tool: Tool, *, is_loose: bool) -> dict[str, Any]:
    """Return the schema for a tool's arguments: an object without undeclared properties, unless the schema allows
    them. Keywords that cannot be enforced are ignored for tools that are not strict."""
    if is_loose and not tool.is_strict:
        schema = dict(ANY_OBJECT)
    else:
        schema = adapt_schema(tool.parameters or {"properties": {}})
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    schema["type"] = "object"
    return schema
