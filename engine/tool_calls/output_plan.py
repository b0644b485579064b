"""The output plan of one task: which tools to show, which constraint to generate under, and how to parse the output.

Constraints are tried in order, the strictest first: keywords that llguidance does not support are given up for tools
that are not strict, and refused where the caller insists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.protocol.output_format import Constraint
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import Tool
from engine.tool_calls.family import UnsupportedSchema
from engine.tool_calls.grammar import (
    Controls,
    ReasoningState,
    can_be_lazy,
    format_after_reasoning,
    harmony_format,
    lazy_calls,
    required_calls,
)
from engine.tool_calls.harmony import HarmonyCalls, HarmonyParser
from engine.tool_calls.output_parser import OutputParser, ReasoningOutputParser, make_call_parser
from engine.tool_calls.reasoning import ReasoningParser
from engine.tool_calls.tool_format import ToolFormat


class ToolsRefused(Exception):
    """The model cannot use these tools; the message tells the caller why."""


@dataclass(frozen=True)
class OutputPlan:
    """`constraints` are tried in this order; None means unconstrained. `form` is None if the output contains no calls,
    `thinking` is None if it contains no reasoning."""

    tools: tuple[Tool, ...]
    constraints: tuple[Constraint | None, ...]
    form: ToolFormat | None
    is_parallel: bool
    thinking: ReasoningState | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Control tokens that must be visible to the parser."""
        of_calls = self.form.family.marks if self.form is not None else ()
        return of_calls if self.thinking is None else (*of_calls, *self.thinking.reasoning.marks)

    def parser(self, constraint: Constraint | None) -> OutputParser | None:
        """Return the parser for output generated under `constraint`; None if the output is text only."""
        calls = None
        if self.form is not None:
            schemas = {tool.name: tool.parameters for tool in self.tools}
            is_constrained = constraint is not None
            calls = make_call_parser(
                self.form.family, schemas, is_constrained=is_constrained, is_parallel=self.is_parallel
            )
        if self.thinking is None or isinstance(calls, HarmonyParser):
            return calls
        reasoning = ReasoningParser(self.thinking.reasoning, self.thinking.phase)
        return reasoning if calls is None else ReasoningOutputParser(reasoning, calls)


def shown_tools(task: TextGeneration) -> tuple[Tool, ...]:
    """Return the tools to show to the model: none with `tool_choice` "none"."""
    return () if task.tool_choice == "none" else task.tools


def make_output_plan(
    task: TextGeneration,
    form: ToolFormat | None,
    controls: Controls,
    thinking: ReasoningState | None = None,
    *,
    is_turn: bool = True,
) -> OutputPlan:
    """Return the plan of `task`. `thinking` is the reasoning state at the end of the prompt. `is_turn`: the chat
    template wrote the prompt. Raises ToolsRefused."""
    has_tools = bool(shown_tools(task))
    if form is not None and isinstance(form.family, HarmonyCalls):
        thinking = None
        if not has_tools and is_turn:
            constraint = None if task.constraint is None else harmony_format(task.constraint, controls)
            return OutputPlan((), (constraint,), form, is_parallel=True)
    if not has_tools:
        constraint = task.constraint
        if constraint is not None and thinking is not None:
            constraint = format_after_reasoning(constraint, controls, thinking)
        return OutputPlan((), (constraint,), None, is_parallel=True, thinking=thinking)
    if form is None:
        raise ToolsRefused(
            "'/tools' cannot be used: the chat template of this model has no known syntax for tool calls"
        )
    if task.constraint is not None and task.constraint.kind not in ("json_schema", "json_object"):
        raise ToolsRefused("'/tools' can only be combined with JSON output formats")
    is_parallel = task.is_parallel_tool_calls and form.supports_parallel and task.named_tool is None
    constraints = _constraints(task, form, controls, thinking, is_parallel=is_parallel)
    return OutputPlan(task.tools, constraints, form, is_parallel, thinking)


def _constraints(
    task: TextGeneration, form: ToolFormat, controls: Controls, thinking: ReasoningState | None, *, is_parallel: bool
) -> tuple[Constraint | None, ...]:
    """Return the constraints to try. Raises ToolsRefused if there is none."""
    family = form.family
    is_required = task.tool_choice == "required"
    tools = [tool for tool in task.tools if not is_required or task.named_tool in (None, tool.name)]
    if not is_required and task.constraint is None and not can_be_lazy(family, controls):
        return (None,)
    constraints: list[Constraint | None] = []
    reason = ""
    for is_loose in _looseness(tools):
        flags = {"is_parallel": is_parallel, "is_loose": is_loose}
        try:
            if is_required:
                constraints.append(required_calls(family, tools, controls, **flags, thinking=thinking))
            else:
                constraints.append(lazy_calls(family, tools, controls, task.constraint, **flags, thinking=thinking))
        except UnsupportedSchema as error:
            reason = str(error)
    if not is_required and task.constraint is None and not any(tool.is_strict for tool in tools):
        constraints.append(None)
    if not constraints:
        raise ToolsRefused(f"'/tools' cannot be enforced in this model's call syntax: {reason}")
    return tuple(constraints)


def _looseness(tools: Sequence[Tool]) -> tuple[bool, ...]:
    return (False,) if all(tool.is_strict for tool in tools) else (False, True)
