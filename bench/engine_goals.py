"""The ratios between Hearth and other engines that have goals, as a Markdown table.

Each goal compares the best of some contenders with the best of some others in one scenario of `bench.engine_cpu`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_HEARTH = ("hearth", "hearth_int8", "hearth_int4")
_LLAMA_CPP = ("llama_cpp_f16", "llama_cpp_q8_0", "llama_cpp_q4_0")
_SCENARIOS = {"dec1": "one stream", "agg16": "16 streams", "pre512": "prefill 512"}


@dataclass(frozen=True)
class Goal:
    """`floor` is the least acceptable ratio of the best of `ours` to the best of `theirs`, `goal` the desired one."""

    scenario: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    floor: float
    goal: float


GOALS = (
    Goal("dec1", ("hearth_int8",), ("llama_cpp_q8_0",), 0.8, 1.1),
    Goal("dec1", ("hearth_int4",), ("llama_cpp_q4_0",), 0.8, 1.1),
    Goal("dec1", ("hearth",), ("llama_cpp_f16",), 0.9, 1.1),
    Goal("dec1", ("hearth",), ("openvino_f32",), 0.9, 1.1),
    Goal("agg16", _HEARTH, _LLAMA_CPP, 1.2, 2.0),
    Goal("agg16", _HEARTH, ("openvino_int8",), 1.2, 2.0),
    Goal("pre512", _HEARTH, _LLAMA_CPP, 0.8, 1.1),
    Goal("pre512", _HEARTH, ("transformers_f32",), 1.0, 1.0),
    *(Goal(scenario, ("hearth",), ("hearth_torch",), 1.0, 1.0) for scenario in _SCENARIOS),
)


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the speeds of all contenders, and the ratios of `GOALS` whose contenders took part."""
    measured = [row for row in results if row.get("scenario") in _SCENARIOS]
    lines = []
    for model in dict.fromkeys(row["model"] for row in measured):
        rows = [row for row in measured if row["model"] == model]
        names = [key for key in rows[0] if isinstance(rows[0][key], float) and not key.startswith("ratio_")]
        lines += [f"| {model}, tok/s | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        lines += [_line([_SCENARIOS[row["scenario"]], *(f"{row[name]:,.0f}" for name in names)]) for row in rows]
        lines += ["", "| what | ratio | floor | goal |", "|---|---|---|---|"]
        lines += [_goal_line(goal, row) for row in rows for goal in GOALS if _applies(goal, row)]
        lines.append("")
    return "\n".join(lines)


def _applies(goal: Goal, row: Mapping[str, Any]) -> bool:
    is_there = any(name in row for name in goal.ours) and any(name in row for name in goal.theirs)
    return goal.scenario == row["scenario"] and is_there


def _goal_line(goal: Goal, row: Mapping[str, Any]) -> str:
    ours, theirs = ({name: row[name] for name in names if name in row} for names in (goal.ours, goal.theirs))
    ratio = max(ours.values()) / max(theirs.values())
    verdict = "goal met" if ratio >= goal.goal else "floor met" if ratio >= goal.floor else "**missed**"
    best, other = max(ours, key=ours.__getitem__), max(theirs, key=theirs.__getitem__)
    what = f"{_SCENARIOS[goal.scenario]}: {best} / {other}"
    return _line([what, f"{ratio:.2f}, {verdict}", str(goal.floor), str(goal.goal)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
