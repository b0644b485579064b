"""Reader of PDF files: metadata and the text of each page. Pages that are images are left to `pdf_scans.py`."""

from __future__ import annotations

import pypdfium2
from pypdfium2 import PdfDocument, PdfiumError

from documents.errors import DocumentRefused
from documents.messages import NO_TEXT
from documents.options import Options

MAX_PAGES = 5_000
_NEEDS_PASSWORD = pypdfium2.raw.FPDF_ERR_PASSWORD
_UNKNOWN_ENCRYPTION = pypdfium2.raw.FPDF_ERR_SECURITY


def read(data: bytes, name: str, options: Options) -> str:
    """Return the text of a PDF file. Raises DocumentRefused."""
    if b"%PDF-" not in data[:1024]:
        raise DocumentRefused("the file is not a PDF")
    try:
        document = PdfDocument(data)
    except PdfiumError as error:
        if error.err_code in (_NEEDS_PASSWORD, _UNKNOWN_ENCRYPTION):
            raise DocumentRefused("the file is encrypted") from None
        raise DocumentRefused("the file is damaged") from error
    if len(document) > MAX_PAGES:
        raise DocumentRefused(f"the file has more than {MAX_PAGES} pages")
    pages = [_page(document, number) for number in range(len(document))]
    if not any(pages):
        raise DocumentRefused(NO_TEXT)
    if options.output_format == "text":
        return "\n\n".join(filter(None, pages))
    parts = [f"# {' '.join(name.split())}"]
    if options.has_pdf_metadata:
        parts.append("## Metadata\n\n" + "\n".join(f"- {line}" for line in _metadata(document)))
    parts.append("## Contents")
    parts += [f"### Page {number}\n\n{page}".strip() for number, page in enumerate(pages, 1)]
    return "\n\n".join(parts)


def _page(document: PdfDocument, number: int) -> str:
    try:
        page = document[number]
        text_page = page.get_textpage()
        text: str = text_page.get_text_range()
        text_page.close()
        page.close()
    except PdfiumError:
        return ""
    lines = (line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").replace("\x02", "-").split("\n"))
    return "\n".join(lines).replace("\x00", "").replace("\ufffe", "").strip()


def _metadata(document: PdfDocument) -> list[str]:
    version = document.get_version()
    lines = [f"PDFFormatVersion={version // 10}.{version % 10}"] if version else []
    found: dict[str, str] = document.get_metadata_dict(skip_empty=True)
    return lines + [f"{key}={' '.join(value.split())}" for key, value in found.items()]
