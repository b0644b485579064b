"""Rows of text as a table: of Markdown, or as plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from documents.errors import DocumentRefused
from documents.options import OutputFormat

MAX_COLUMNS = 2_000


def table(rows: Iterable[Sequence[str]], output: OutputFormat) -> str:
    """The first row is the head. Empty rows at the end, and columns that nothing is in, are left out. Raises
    DocumentRefused for more columns than anyone reads."""
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
