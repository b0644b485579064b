"""What one task's tools and output format come to on one model: tools to show, a constraint, a parser of the answer.

Constraints are tried in order, the strictest first: what the library does not take of a tool that is not strict is
given up, what the caller insists on is refused. Knows the task and the model's form; checks nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.protocol.output_format import Constraint
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import Tool
from engine.tool_calls.answer_parser import AnswerParser, ThinkingParser, call_parser
from engine.tool_calls.family import SchemaUnwritable
from engine.tool_calls.form import Form
from engine.tool_calls.grammar import (
    Controls,
    Thinking,
    can_be_lazy,
    harmony_answer,
    lazy_calls,
    required_calls,
    thoughtful_answer,
)
from engine.tool_calls.harmony import HarmonyCalls, HarmonyParser
from engine.tool_calls.reasoning import ThoughtParser


class ToolsUnusable(Exception):
    """The model cannot be given these tools; the text says why, for the caller."""


@dataclass(frozen=True)
class Plan:
    """`constraints` are to be tried in this order; None stands for none. `form` None: there is no call to look for.
    `thinking` None: nor a thought."""

    tools: tuple[Tool, ...]
    constraints: tuple[Constraint | None, ...]
    form: Form | None
    is_parallel: bool
    thinking: Thinking | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Control tokens that the parser has to see."""
        of_calls = self.form.family.marks if self.form is not None else ()
        return of_calls if self.thinking is None else (*of_calls, *self.thinking.reasoning.marks)

    def parser(self, constraint: Constraint | None) -> AnswerParser | None:
        """Reads the answer that was held to `constraint`; None where it is nothing but text."""
        calls = None
        if self.form is not None:
            schemas = {tool.name: tool.parameters for tool in self.tools}
            is_held = constraint is not None
            calls = call_parser(self.form.family, schemas, is_held=is_held, is_parallel=self.is_parallel)
        if self.thinking is None or isinstance(calls, HarmonyParser):
            return calls
        return ThinkingParser(ThoughtParser(self.thinking.reasoning, self.thinking.phase), calls)


def shown_tools(task: TextGeneration) -> tuple[Tool, ...]:
    """The tools the model is to see. `tool_choice` none hides them: what it is not shown, it does not call."""
    return () if task.tool_choice == "none" else task.tools


def make_plan(
    task: TextGeneration,
    form: Form | None,
    controls: Controls,
    thinking: Thinking | None = None,
    *,
    is_turn: bool = True,
) -> Plan:
    """`thinking` is where the prompt leaves a model that thinks first; `is_turn`: its template wrote the prompt. Raises
    ToolsUnusable."""
    has_tools = bool(shown_tools(task))
    if form is not None and isinstance(form.family, HarmonyCalls):
        thinking = None
        if not has_tools and is_turn:
            held = None if task.constraint is None else harmony_answer(task.constraint, controls)
            return Plan((), (held,), form, is_parallel=True)
    if not has_tools:
        held = task.constraint
        if held is not None and thinking is not None:
            held = thoughtful_answer(held, controls, thinking)
        return Plan((), (held,), None, is_parallel=True, thinking=thinking)
    if form is None:
        raise ToolsUnusable("'/tools' cannot be used: the chat template of this model shows no tools that we can read")
    if task.constraint is not None and task.constraint.kind not in ("json_schema", "json_object"):
        raise ToolsUnusable("'/tools' can be combined with no other output format than JSON")
    is_parallel = task.is_parallel_tool_calls and form.takes_several and task.named_tool is None
    constraints = _constraints(task, form, controls, thinking, is_parallel=is_parallel)
    return Plan(task.tools, constraints, form, is_parallel, thinking)


def _constraints(
    task: TextGeneration, form: Form, controls: Controls, thinking: Thinking | None, *, is_parallel: bool
) -> tuple[Constraint | None, ...]:
    """Raises ToolsUnusable when there is none."""
    family = form.family
    is_required = task.tool_choice == "required"
    tools = [tool for tool in task.tools if not is_required or task.named_tool in (None, tool.name)]
    if not is_required and task.constraint is None and not can_be_lazy(family, controls):
        return (None,)
    held: list[Constraint | None] = []
    why = ""
    for is_loose in _looseness(tools):
        how = {"is_parallel": is_parallel, "is_loose": is_loose}
        try:
            if is_required:
                held.append(required_calls(family, tools, controls, **how, thinking=thinking))
            else:
                held.append(lazy_calls(family, tools, controls, task.constraint, **how, thinking=thinking))
        except SchemaUnwritable as error:
            why = str(error)
    if not is_required and task.constraint is None and not any(tool.is_strict for tool in tools):
        held.append(None)
    if not held:
        raise ToolsUnusable(f"'/tools' cannot be held to where this model writes arguments as text: {why}")
    return tuple(held)


def _looseness(tools: Sequence[Tool]) -> tuple[bool, ...]:
    return (False,) if all(tool.is_strict for tool in tools) else (False, True)
