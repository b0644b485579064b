"""Reader of CSV files. The delimiter may be a comma, semicolon, tab or vertical bar."""

from __future__ import annotations

import csv
import io

from documents import text_encoding
from documents.errors import DocumentRefused
from documents.options import Options
from documents.tables import format_table

_DELIMITERS = ",;\t|"
_NUM_INSPECTED_LINES = 20  # lines inspected to find the delimiter


def read(data: bytes, _name: str, options: Options) -> str:
    """Return the rows as a table. Raises DocumentRefused."""
    text = text_encoding.decode(data)
    csv.field_size_limit(1 << 20)
    try:
        return format_table(
            csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text)), options.output_format
        )
    except csv.Error as error:
        raise DocumentRefused("the file is not CSV") from error


def _delimiter(text: str) -> str:
    """Return the delimiter that occurs in the most of the first lines, and among equals the most frequent."""
    lines = [line for line in text[: 64 * 1024].splitlines()[:_NUM_INSPECTED_LINES] if line.strip()]
    return max(
        _DELIMITERS,
        key=lambda sign: (sum(sign in line for line in lines), sum(map(str.count, lines, sign * len(lines)))),
    )
