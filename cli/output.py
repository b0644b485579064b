"""What a command prints: for people a table or a few lines, for programs (`--json`) one JSON document; how it fails.

Knows no nouns. rich is imported only when there is a table to draw.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class CommandFailed(Exception):
    """The command cannot do what was asked; the text is one line for the person who asked. Exits with `exit_code`:
    1 when the platform or the machine is not in a state for it, 2 when the request itself makes no sense."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def print_json(value: Any) -> None:
    """One JSON document on one line; dates in ISO 8601."""
    sys.stdout.write(json.dumps(value, default=str, ensure_ascii=False) + "\n")


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, is_json: bool, empty: str) -> None:
    """Rows as a table of `columns`, or whole as a JSON array. `empty` is what a person reads when there are none."""
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
    # A pipe has no width: lines are never folded there, so that grep and cut find whole cells.
    Console(width=None if sys.stdout.isatty() else 400).print(table)


def print_record(record: Mapping[str, Any], *, is_json: bool) -> None:
    """One thing as `name  value` lines, or as a JSON object."""
    if is_json:
        print_json(dict(record))
        return
    width = max((len(name) for name in record), default=0)
    for name, value in record.items():
        sys.stdout.write(f"{name:<{width}}  {_cell(value)}\n")


def print_failure(message: str, exit_code: int, *, is_json: bool) -> None:
    """One line on standard error, for people or for programs."""
    line = json.dumps({"error": {"message": message, "exit_code": exit_code}}) if is_json else f"hearth: {message}"
    sys.stderr.write(line + "\n")


def _cell(value: Any) -> str:
    """As people read it: times to the second, numbers without an exponent, a dash for nothing."""
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
