"""Reader of spreadsheets: .xlsx, .xlsm, .xlsb, .xls and .ods."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable
from datetime import date, datetime, time
from typing import Any

from python_calamine import CalamineError, CalamineWorkbook, PasswordError

from documents.archives import open_archive
from documents.errors import DocumentRefused
from documents.options import Options
from documents.tables import format_table

MAX_SHEETS = 500
MAX_CELLS = 5_000_000  # cells in the rectangle around the used cells of a sheet
_CELL = re.compile(rb"""<(?:\w+:)?c\s[^<>]*?\br\s*=\s*["']([A-Z]{1,3})([0-9]{1,7})["']""")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def read(data: bytes, name: str, options: Options) -> str:
    """Return one table per sheet. Raises DocumentRefused."""
    if not (data.startswith(_OLE) and name.lower().endswith(".xls")):
        archive = open_archive(data)
        parts = set(archive.namelist())
        if not parts & {"xl/workbook.xml", "xl/workbook.bin", "content.xml"}:
            raise DocumentRefused("the file is not a spreadsheet")
        _check_extents(archive)
    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(data))
        if len(book.sheet_names) > MAX_SHEETS:
            raise DocumentRefused(f"the file has more than {MAX_SHEETS} sheets")
        return "\n\n".join(_sheet(book, sheet, options) for sheet in book.sheet_names)
    except PasswordError:
        raise DocumentRefused("the file is encrypted") from None
    except (CalamineError, OSError, ValueError) as error:
        raise DocumentRefused("the file is damaged or its content does not match its type") from error


def _check_extents(archive: zipfile.ZipFile) -> None:
    """Raise DocumentRefused if a sheet has far-away cells: the reader stores the whole rectangle around all cells, and
    its process aborts if there is not enough memory."""
    for part in archive.namelist():
        if part.startswith("xl/worksheets/") and part.endswith(".xml"):
            places = [(int(row), _column_number(letters)) for letters, row in _CELL.findall(archive.read(part))]
            rows, columns = ([place[i] for place in places] for i in (0, 1))
            if places and (max(rows) - min(rows) + 1) * (max(columns) - min(columns) + 1) > MAX_CELLS:
                raise DocumentRefused(f"a sheet spans more than {MAX_CELLS} cells, most of them empty")


def _column_number(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = 26 * number + letter - 64
    return number


def _sheet(book: CalamineWorkbook, sheet: str, options: Options) -> str:
    rows: Iterable[list[Any]] = book.get_sheet_by_name(sheet).to_python(skip_empty_area=True)
    body = format_table(([_format_cell(cell) for cell in row] for row in rows), options.output_format)
    title = " ".join(sheet.split())
    head = title if options.output_format == "text" else f"## {title}"
    return f"{head}\n\n{body}" if body else head


def _format_cell(cell: Any) -> str:
    if isinstance(cell, bool):
        return "TRUE" if cell else "FALSE"
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, datetime) and cell.time() == time():
        return cell.date().isoformat()
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    return str(cell)
