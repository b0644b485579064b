"""`hearth settings`: the settings of each process, with secrets masked."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
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
    """Show the settings of each process, with secrets masked. Fails if a setting is invalid, or missing in a
    deployment. Without a running platform, shows defaults and what the environment sets."""
    from telemetry.settings import SettingError

    target, note = _find(data)
    rows: list[dict[str, Any]] = []
    problems = []
    for name in [process] if process else list(ProcessName):
        try:
            rows += _rows(name, target, is_complete=not note)
        except SettingError as error:
            problems.append(f"{name.value}: {error}")
    if json and (rows or not problems):
        print_json(rows)
    elif rows:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write("\n".join(settings_lines(rows, width)) + "\n")
    if problems:
        raise CommandFailed("; ".join(problems))
    if note and not json:
        sys.stderr.write(f"hearth: {note}\n")


def _find(data: Path | None) -> tuple[Target, str]:
    """Return the platform, and a note if no platform runs whose settings could be complete."""
    try:
        target = Target.find(data)
    except CommandFailed as error:
        return Target(dict(os.environ), None), f"{error}. These are the settings of this environment"
    if target.is_stopped:
        return target, f"the platform in {target.origin} is not running; `hearth up` sets those that are required"
    return target, ""


def settings_lines(rows: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """Return a heading for each process and one line for each setting, none longer than `width` characters.

    A `*` marks settings that the environment sets, a `!` required settings without a value. The help text is cut to
    the space that is left; None as `width` means unlimited.
    """
    name_characters = max(len(row["setting"]) for row in rows)
    lines: list[str] = []
    process = None
    for row in rows:
        if row["process"] != process:
            process = row["process"]
            lines += [""] if lines else []
            lines.append(_cut(f"{process} (* = set, ! = required and not set, all others are defaults)", width))
        mark = {"set": "*", "missing": "!"}.get(row["source"], " ")
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


def _rows(process: ProcessName, target: Target, *, is_complete: bool) -> list[dict[str, Any]]:
    """Return the settings of a process as rows. With `is_complete`, required settings must have a value.

    Raises SettingError.
    """
    from telemetry.settings import describe, mask_url, parse_environment, read_settings

    declared = settings_class(process)
    rows = []
    for name, environ in target.processes(process.value).items():
        if is_complete:
            read_settings(declared, environ)
        values = parse_environment(declared, environ)
        for info in describe(declared):
            value = values.get(info.env, info.default)
            text = "" if value is None else str(value)
            unset = "missing" if info.is_required else "default"
            rows.append(
                {
                    "process": name,
                    "setting": info.env,
                    "value": "********" if info.is_secret and text else mask_url(text),
                    "source": "set" if environ.get(info.env) else unset,
                    "help": info.help,
                }
            )
    return rows
