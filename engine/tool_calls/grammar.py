"""Which tools a model may or must call -> a grammar that lets it write nothing else (Lark, in llguidance's dialect).

Where the choice is the model's, the grammar is lazy: free text, until the mark that opens a call; from there on, a
call of a tool that was offered, its arguments by the tool's schema. Pure text; whether the library takes a schema,
`engine/constraints/` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.constraints.compile import JSON_OPTIONS
from engine.constraints.json_schema import ANY_OBJECT, with_finite_numbers
from engine.protocol.tasks import Constraint, Tool
from engine.tool_calls.families import Family

# As `json.dumps` writes, which is what models were shown in training.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class Controls:
    """What the grammar must know of a model's control tokens: the ids of marks by their text, and the ids of others
    that may stand in an answer's text (`<think>`)."""

    marks: Mapping[str, int]
    in_text: Collection[int] = ()


def can_be_lazy(family: Family, controls: Controls) -> bool:
    """Whether text can be told from the beginning of a call: the opening is a control token, and always there."""
    return not family.is_bare and family.opening in controls.marks


def required_calls(
    family: Family, tools: Sequence[Tool], controls: Controls, *, is_parallel: bool, is_loose: bool
) -> Constraint:
    """One call of one of `tools` or, if parallel, several; and no other text. `is_loose`: only the arguments of strict
    tools are held to their schema."""
    return Constraint("grammar", "start: calls\n" + _calls(family, tools, controls, is_parallel, is_loose))


def lazy_calls(
    family: Family,
    tools: Sequence[Tool],
    controls: Controls,
    answer: Constraint | None,
    *,
    is_parallel: bool,
    is_loose: bool,
) -> Constraint:
    """Text with or without calls after it; where the caller wants an `answer` in JSON, that or calls."""
    if answer is None:
        head = f"start: text calls?\n{_text(family, controls)}"
    else:
        schema = ANY_OBJECT if answer.kind == "json_object" else with_finite_numbers(json.loads(answer.text))
        head = f"start: answer | calls\nanswer: %json {_json({**schema, 'x-guidance': JSON_OPTIONS})}\n"
    return Constraint("grammar", head + _calls(family, tools, controls, is_parallel, is_loose))


def _text(family: Family, controls: Controls) -> str:
    """Text that does not spell the opening, with the control tokens that may show in it."""
    spelled = re.escape(family.opening).replace("/", r"\/")
    rules = f"TEXT: /(?s:.+)/ & ~/(?s:.*){spelled}(?s:.*)/\n"
    if not controls.in_text:
        return f"text: TEXT?\n{rules}"
    return f"text: TEXT? (control TEXT?)*\ncontrol: <[{','.join(map(str, sorted(controls.in_text)))}]>\n{rules}"


def _calls(family: Family, tools: Sequence[Tool], controls: Controls, is_parallel: bool, is_loose: bool) -> str:
    def literal(text: str) -> str:
        """Characters, with control tokens where they are some of the model's."""
        pattern = "|".join(re.escape(mark) for mark in family.marks if mark in controls.marks)
        parts = re.split(f"({pattern})", text) if pattern else [text]
        return " ".join(
            f"<[{controls.marks[part]}]>" if part in controls.marks else _json(part) for part in parts if part
        )

    opening = "" if family.is_bare else family.opening
    more = f"({literal(family.between)} call)*" if is_parallel else ""
    rules = [
        f"calls: {literal(opening + family.head)} call {more} {literal(family.tail)}",
        "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
    ]
    for index, tool in enumerate(tools):
        begin = f'{{"name": {_json(tool.name)}, "{family.arguments_field}": '
        arguments = _json(_arguments(tool, is_loose=is_loose))
        rules += [f'call_{index}: {_json(begin)} arguments_{index} "}}"', f"arguments_{index}: %json {arguments}"]
    return "\n".join(rules) + "\n"


def _arguments(tool: Tool, *, is_loose: bool) -> dict[str, Any]:
    """The schema that a tool's arguments are held to: an object, with no field but those it declares, unless it says
    otherwise. A tool that is not strict may use keywords that cannot be held to; they are left out."""
    if is_loose and not tool.is_strict:
        schema = dict(ANY_OBJECT)
    else:
        schema = with_finite_numbers(tool.parameters or {"properties": {}})
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    schema["type"] = "object"
    options = {**_SPACING, "lenient": not tool.is_strict, "coerce_one_of": not tool.is_strict}
    return {**schema, "x-guidance": options}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
