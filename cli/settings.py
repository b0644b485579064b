"""`hearth settings`: the settings of each process, with secrets masked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_json
from cli.target import DataOption, Target
from local_platform.process_settings import ProcessName, settings_class

_MIN_HELP_CHARACTERS = 16
_VALUE_CHARACTERS = 14


def settings(
    process: Annotated[ProcessName | None, typer.Argument(help="Show only this process.", show_default=False)] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Show the settings of each process, with secrets masked. Fails if a setting is missing or invalid."""
    from telemetry.settings import SettingError

    target = Target.find(data)
    if target.is_stopped:
        raise CommandFailed(f"the platform in {target.origin} is not running; start it with `hearth up`")
    rows: list[dict[str, Any]] = []
    problems = []
    for name in [process] if process else list(ProcessName):
        try:
            rows += _rows(name, target)
        except SettingError as error:
            problems.append(f"{name.value}: {error}")
    if json and (rows or not problems):
        print_json(rows)
    elif rows:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write("\n".join(settings_lines(rows, width)) + "\n")
    if problems:
        raise CommandFailed("; ".join(problems))


def settings_lines(rows: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """Return a heading for each process and one line for each setting, none longer than `width` characters.

    A `*` marks settings that the environment sets. The help text is cut to the space that is left; None as `width`
    means unlimited.
    """
    name_characters = max(len(row["setting"]) for row in rows)
    lines: list[str] = []
    process = None
    for row in rows:
        if row["process"] != process:
            process = row["process"]
            lines += [""] if lines else []
            lines.append(_cut(f"{process} (* = set, all others are defaults)", width))
        mark = "*" if row["source"] == "set" else " "
        line = f"{mark} {row['setting']:<{name_characters}}  {_shown(row['value']):<{_VALUE_CHARACTERS}}"
        if width is None or len(line) + 2 + _MIN_HELP_CHARACTERS <= width:
            line += f"  {row['help']}"
        lines.append(_cut(line.rstrip(), width))
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value in (None, "") else str(value)


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def _rows(process: ProcessName, target: Target) -> list[dict[str, Any]]:
    """Raises SettingError."""
    from telemetry.settings import describe, masked, read_settings

    declared = settings_class(process)
    rows = []
    for name, environ in target.processes(process.value).items():
        values = masked(read_settings(declared, environ))
        rows += [
            {
                "process": name,
                "setting": info.env,
                "value": values[info.env],
                "source": "set" if environ.get(info.env) else "default",
                "help": info.help,
            }
            for info in describe(declared)
        ]
    return rows
