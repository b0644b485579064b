"""What one task's tools and output format come to on one model: tools to show, a constraint, a parser of the answer.

Constraints are tried in order, the strictest first: what the library does not take of a tool that is not strict is
given up, what the caller insists on is refused. Knows the task and the model's form; checks nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.protocol.tasks import Constraint, TextGeneration, Tool
from engine.tool_calls.form import Form
from engine.tool_calls.grammar import Controls, can_be_lazy, lazy_calls, required_calls
from engine.tool_calls.parser import CallParser


class ToolsUnusable(Exception):
    """The model cannot be given these tools; the text says why, for the caller."""


@dataclass(frozen=True)
class Plan:
    """`constraints` are to be tried in this order; None stands for none. `form` None: there is no call to look for."""

    tools: tuple[Tool, ...]
    constraints: tuple[Constraint | None, ...]
    form: Form | None
    is_parallel: bool

    def parser(self, constraint: Constraint | None) -> CallParser | None:
        """Reads the answer that was held to `constraint`; None where no tool was offered."""
        if self.form is None:
            return None
        names = {tool.name for tool in self.tools}
        return CallParser(self.form.family, names, is_held=constraint is not None, is_parallel=self.is_parallel)


def shown_tools(task: TextGeneration) -> tuple[Tool, ...]:
    """The tools the model is to see. `tool_choice` none hides them: what it is not shown, it does not call."""
    return () if task.tool_choice == "none" else task.tools


def make_plan(task: TextGeneration, form: Form | None, controls: Controls) -> Plan:
    """Raises ToolsUnusable."""
    if not shown_tools(task):
        return Plan((), (task.constraint,), None, is_parallel=True)
    if form is None:
        raise ToolsUnusable("'/tools' cannot be used: the chat template of this model shows no tools that we can read")
    if task.constraint is not None and task.constraint.kind not in ("json_schema", "json_object"):
        raise ToolsUnusable("'/tools' can be combined with no other output format than JSON")
    is_parallel = task.is_parallel_tool_calls and form.takes_several and task.named_tool is None
    return Plan(task.tools, _constraints(task, form, controls, is_parallel), form, is_parallel)


def _constraints(
    task: TextGeneration, form: Form, controls: Controls, is_parallel: bool
) -> tuple[Constraint | None, ...]:
    family = form.family
    if task.tool_choice == "required":
        asked = [tool for tool in task.tools if task.named_tool in (None, tool.name)]
        return tuple(
            required_calls(family, asked, controls, is_parallel=is_parallel, is_loose=is_loose)
            for is_loose in _looseness(asked)
        )
    held = tuple(
        lazy_calls(family, task.tools, controls, task.constraint, is_parallel=is_parallel, is_loose=is_loose)
        for is_loose in _looseness(task.tools)
    )
    if task.constraint is not None:
        return held
    if not can_be_lazy(family, controls):
        return (None,)
    return held if any(tool.is_strict for tool in task.tools) else (*held, None)


def _looseness(tools: Sequence[Tool]) -> tuple[bool, ...]:
    return (False,) if all(tool.is_strict for tool in tools) else (False, True)
