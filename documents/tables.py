"""Formats rows of text as a Markdown table or as tab-separated lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from documents.errors import DocumentRefused
from documents.options import OutputFormat

MAX_COLUMNS = 2_000


def format_table(rows: Iterable[Sequence[str]], output: OutputFormat) -> str:
    """Format a table whose first row is the header. Trailing empty rows and columns are dropped. Raises
    DocumentRefused if there are more than MAX_COLUMNS columns."""
    found = [[cell.strip() for cell in row] for row in rows]
    while found and not any(found[-1]):
        found.pop()
    width = max((_width(row) for row in found), default=0)
    if not width:
        return ""
    if width > MAX_COLUMNS:
        raise DocumentRefused(f"a table has more than {MAX_COLUMNS} columns")
    padded = [(row + [""] * width)[:width] for row in found]
    if output == "text":
        return "\n".join("\t".join(" ".join(cell.split()) for cell in row).rstrip() for row in padded)
    head, *body = [f"| {' | '.join(map(_escaped, row))} |" for row in padded]
    return "\n".join([head, f"|{' --- |' * width}", *body])


def _width(row: Sequence[str]) -> int:
    return max((i + 1 for i, cell in enumerate(row) if cell), default=0)


def _escaped(cell: str) -> str:
    return " ".join(cell.replace("\\", "\\\\").replace("|", "\\|").split())
