"""`hearth settings`: what each process would run with, secrets masked. Reads the same declarations as the processes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from cli.data_dir import DataOption
from cli.output import CommandFailed, JsonOption, print_rows
from cli.target import Target


class ProcessName(StrEnum):
    gateway = "gateway"
    node = "node"


def settings(
    process: Annotated[ProcessName | None, typer.Argument(help="Only this process.", show_default=False)] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Show the settings in force, by process, with secrets masked. Fails, naming the key, where one cannot work."""
    from telemetry.settings import SettingError

    target = Target.find(data)
    if target.is_stopped:
        raise CommandFailed(f"the platform in {target.origin} is not up, and has no settings until it is")
    rows: list[dict[str, Any]] = []
    problems = []
    for name in [process] if process else list(ProcessName):
        try:
            rows += _rows(name, target)
        except SettingError as error:
            problems.append(f"{name.value}: {error}")
    if rows or not problems:
        print_rows(rows, ("process", "setting", "value", "source", "help"), is_json=json, empty="no settings")
    if problems:
        raise CommandFailed("; ".join(problems))


def settings_class(process: ProcessName) -> type:
    """The dataclass in which a process declares its settings."""
    if process is ProcessName.gateway:
        from gateway.settings import GatewaySettings

        return GatewaySettings
    from engine.node.settings import NodeSettings

    return NodeSettings


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
