"""CSV files, whatever separates their cells: a comma, a semicolon, a tab or a bar."""

from __future__ import annotations

import csv
import io

from documents import words
from documents.errors import DocumentRefused
from documents.options import Options
from documents.tables import table

_SEPARATORS = ",;\t|"
_LOOKED_AT = 20  # lines


def read(data: bytes, _name: str, options: Options) -> str:
    """Raises DocumentRefused."""
    text = words.decode(data)
    csv.field_size_limit(1 << 20)
    try:
        return table(csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text)), options.output_format)
    except csv.Error as error:
        raise DocumentRefused("the file is not CSV, as its name says") from error


def _separator(text: str) -> str:
    """The one that is there in most of the first lines, and most often."""
    lines = [line for line in text[: 64 * 1024].splitlines()[:_LOOKED_AT] if line.strip()]
    return max(
        _SEPARATORS,
        key=lambda sign: (sum(sign in line for line in lines), sum(map(str.count, lines, sign * len(lines)))),
    )
