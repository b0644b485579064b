"""Output of commands: tables or lines for people, one JSON document with `--json`, and one line for a failure.

rich is imported only when a table is printed, so that other commands start fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class CommandFailed(Exception):
    """The command failed; the message is one line for the user.

    `exit_code` is 1 if the platform or the machine is in the wrong state, and 2 if the request is invalid.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def print_json(value: Any) -> None:
    """Print one JSON document on one line, with dates in ISO 8601."""
    sys.stdout.write(json.dumps(value, default=str, ensure_ascii=False) + "\n")


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, is_json: bool, empty: str) -> None:
    """Print rows as a table of `columns`, or all fields as a JSON array.

    `empty` is printed instead of an empty table.
    """
    if is_json:
        print_json(list(rows))
        return
    if not rows:
        sys.stdout.write(empty + "\n")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*(column.replace("_", " ") for column in columns), box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    # Cells are not wrapped in a pipe, so that grep and cut find whole values.
    Console(width=None if sys.stdout.isatty() else 400).print(table)


def print_record(record: Mapping[str, Any], *, is_json: bool) -> None:
    """Print one object as `name  value` lines, or as a JSON object."""
    if is_json:
        print_json(dict(record))
        return
    width = max((len(name) for name in record), default=0)
    for name, value in record.items():
        sys.stdout.write(f"{name:<{width}}  {_cell(value)}\n")


def print_failure(message: str, exit_code: int, *, is_json: bool) -> None:
    """Print a failure as one line on standard error, as text or as JSON."""
    line = json.dumps({"error": {"message": message, "exit_code": exit_code}}) if is_json else f"hearth: {message}"
    sys.stderr.write(line + "\n")


def size_text(size_bytes: int) -> str:
    """Return a number of bytes as text, such as `98.4 MB`."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= step:
            return f"{size_bytes / step:.1f} {unit}"
    return f"{size_bytes} B"


def _cell(value: Any) -> str:
    """Return a value as text: times to the second, numbers without an exponent, `-` for an empty value."""
    match value:
        case None | "":
            return "-"
        case dict():
            return ", ".join(f"{name}: {_cell(each)}" for name, each in value.items()) or "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6f}".rstrip("0").removesuffix(".")
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        case list() | tuple() | set() | frozenset():
            return ", ".join(str(item) for item in value)
        case _:
            return str(value)
