"""Minimal files of each supported type, built in code so that tests can modify them."""

from __future__ import annotations

import io
import zipfile

_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_RELATIONS = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_SLIDES = "http://schemas.openxmlformats.org/presentationml/2006/main"
_DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
_TYPES = "application/vnd.openxmlformats-officedocument"


def zipped(parts: dict[str, str | bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def _content_types(**overrides: str) -> str:
    lines = "".join(f'<Override PartName="/{part}" ContentType="{kind}"/>' for part, kind in overrides.items())
    return (
        f'{_XML}<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="application/xml"/>{lines}</Types>'
    )


def relations(*targets: tuple[str, str, str], mode: str = "") -> str:
    """Return a relationships part. Each target is (id, last path segment of the type, target path)."""
    lines = "".join(
        f'<Relationship Id="{name}" Type="{_OFFICE}/{kind}" Target="{target}"{mode}/>' for name, kind, target in targets
    )
    return f"{_XML}<Relationships {_RELATIONS}>{lines}</Relationships>"


def word_parts(body: str = "") -> dict[str, str | bytes]:
    body = body or (
        '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Report</w:t></w:r></w:p>'
        "<w:p><w:r><w:t>Some </w:t></w:r>"
        "<w:r><w:rPr><w:b/></w:rPr><w:t>bold</w:t></w:r><w:r><w:t> text.</w:t></w:r></w:p>"
        "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr>"
        "<w:tr><w:tc><w:p><w:r><w:t>1</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>2</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    )
    styles = (
        f'{_XML}<w:styles xmlns:w="{_WORD}"><w:style w:type="paragraph" w:styleId="Heading1">'
        '<w:name w:val="heading 1"/></w:style></w:styles>'
    )
    return {
        "[Content_Types].xml": _content_types(
            **{"word/document.xml": f"{_TYPES}.wordprocessingml.document.main+xml",
               "word/styles.xml": f"{_TYPES}.wordprocessingml.styles+xml"}
        ),
        "_rels/.rels": relations(("rId1", "officeDocument", "word/document.xml")),
        "word/_rels/document.xml.rels": relations(("rId1", "styles", "styles.xml")),
        "word/document.xml": f'{_XML}<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>',
        "word/styles.xml": styles,
    }  # fmt: skip


def sheet_parts(rows: str = "") -> dict[str, str | bytes]:
    rows = rows or (
        '<row r="1"><c r="A1" t="inlineStr"><is><t>name</t></is></c>'
        '<c r="B1" t="inlineStr"><is><t>a|b</t></is></c></row>'
        '<row r="2"><c r="A2"><v>3</v></c><c r="B2"><v>2.5</v></c></row>'
    )
    return {
        "[Content_Types].xml": _content_types(
            **{"xl/workbook.xml": f"{_TYPES}.spreadsheetml.sheet.main+xml",
               "xl/worksheets/sheet1.xml": f"{_TYPES}.spreadsheetml.worksheet+xml"}
        ),
        "_rels/.rels": relations(("rId1", "officeDocument", "xl/workbook.xml")),
        "xl/_rels/workbook.xml.rels": relations(("rId1", "worksheet", "worksheets/sheet1.xml")),
        "xl/workbook.xml": f'{_XML}<workbook xmlns="{_SHEET}" xmlns:r="{_OFFICE}"><sheets>'
        '<sheet name="Prices" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/worksheets/sheet1.xml": f'{_XML}<worksheet xmlns="{_SHEET}"><sheetData>{rows}</sheetData></worksheet>',
    }  # fmt: skip


def _shape(kind: str, *lines: str) -> str:
    text = "".join(f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in lines)
    holder = f'<p:nvSpPr><p:nvPr><p:ph type="{kind}"/></p:nvPr></p:nvSpPr>'
    return f"<p:sp>{holder}<p:txBody>{text}</p:txBody></p:sp>"


def slide_parts() -> dict[str, str | bytes]:
    spaces = f'xmlns:p="{_SLIDES}" xmlns:a="{_DRAWING}" xmlns:r="{_OFFICE}"'
    one = _shape("title", "Plans") + _shape("body", "First", "Second") + _shape("sldNum", "7")
    two = (
        "<p:graphicFrame><a:tbl><a:tr><a:tc><a:txBody><a:p><a:r><a:t>x</a:t></a:r></a:p></a:txBody></a:tc></a:tr>"
        "<a:tr><a:tc><a:txBody><a:p><a:r><a:t>y</a:t></a:r></a:p></a:txBody></a:tc></a:tr></a:tbl></p:graphicFrame>"
    )
    ids = '<p:sldId id="256" r:id="rId2"/><p:sldId id="257" r:id="rId1"/>'
    return {
        "ppt/presentation.xml": f"{_XML}<p:presentation {spaces}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": relations(
            ("rId1", "slide", "slides/slide1.xml"), ("rId2", "slide", "slides/slide2.xml")
        ),
        "ppt/slides/slide1.xml": f"{_XML}<p:sld {spaces}><p:cSld><p:spTree>{two}</p:spTree></p:cSld></p:sld>",
        "ppt/slides/slide2.xml": f"{_XML}<p:sld {spaces}><p:cSld><p:spTree>{one}</p:spTree></p:cSld></p:sld>",
        "ppt/slides/_rels/slide2.xml.rels": relations(("rId1", "notesSlide", "../notesSlides/notesSlide1.xml")),
        "ppt/notesSlides/notesSlide1.xml": f"{_XML}<p:notes {spaces}><p:cSld><p:spTree>{_shape('body', 'Say it')}"
        "</p:spTree></p:cSld></p:notes>",
    }


_ODF = "urn:oasis:names:tc:opendocument:xmlns"


def open_parts(kind: str, body: str) -> dict[str, str | bytes]:
    media_type = f"application/vnd.oasis.opendocument.{kind}"
    spaces = " ".join(
        f'xmlns:{name}="{_ODF}:{name}:1.0"' for name in ("office", "text", "table", "manifest", "style")
    )  # fmt: skip
    manifest = (
        f'{_XML}<manifest:manifest {spaces}><manifest:file-entry manifest:full-path="/" '
        f'manifest:media-type="{media_type}"/></manifest:manifest>'
    )
    content = (
        f'{_XML}<office:document-content {spaces} xmlns:xlink="http://www.w3.org/1999/xlink">'
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )
    return {"mimetype": media_type, "META-INF/manifest.xml": manifest, "content.xml": content}


def open_text_parts() -> dict[str, str | bytes]:
    return open_parts(
        "text",
        '<text:h text:outline-level="2">Notes</text:h><text:p>One<text:s text:c="2"/>two '
        '<text:a xlink:href="https://a.example/x">link</text:a></text:p>'
        "<text:list><text:list-item><text:p>first</text:p></text:list-item></text:list>"
        "<table:table><table:table-row><table:table-cell><text:p>c</text:p></table:table-cell></table:table-row>"
        "<table:table-row><table:table-cell><text:p>d</text:p></table:table-cell></table:table-row></table:table>",
    )


def open_sheet_parts() -> dict[str, str | bytes]:
    cell = '<table:table-cell office:value-type="string"><text:p>{}</text:p></table:table-cell>'
    rows = "".join(f"<table:table-row>{cell.format(value)}</table:table-row>" for value in ("head", "tail"))
    return open_parts("spreadsheet", f'<table:table table:name="Sheet A">{rows}</table:table>')


def pdf(*pages: str, extra: str = "", trailer: str = "") -> bytes:
    """Return a PDF with one line of text per page. `extra` holds further objects, numbered from 100."""
    kids = " ".join(f"{10 + 2 * i} 0 R" for i in range(len(pages)))
    objects = {
        1: "<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        3: "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        4: "<< /Title (A test) /Producer (by hand) >>",
    }
    for i, text in enumerate(pages):
        drawing = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET"
        objects[10 + 2 * i] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {11 + 2 * i} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects[11 + 2 * i] = f"<< /Length {len(drawing)} >>\nstream\n{drawing}\nendstream"
    out = bytearray(b"%PDF-1.4\n")
    places = {}
    for number, text in objects.items():
        places[number] = len(out)
        out += f"{number} 0 obj\n{text}\nendobj\n".encode("latin-1")
    out += extra.encode("latin-1")
    start = len(out)
    out += b"xref\n0 1\n0000000000 65535 f \n"
    for number, place in places.items():
        out += f"{number} 1\n{place:010} 00000 n \n".encode()
    out += f"trailer\n<< /Size 200 /Root 1 0 R /Info 4 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n".encode()
    return bytes(out)


PAGE = (
    b"<html><head><title>T</title><style>p{}</style><script>alert(1)</script></head><body><!-- no -->"
    b"<nav>Menu</nav><main><h1>Bread &amp; butter</h1><p>A <b>good</b> <a href='/more'>read</a>, "
    b"<a href='javascript:alert(1)'>not this</a>.</p><ul><li>one</li><li>two</li></ul>"
    b"<table><tr><th>k</th><th>v</th></tr><tr><td>a</td><td>1</td></tr></table>"
    b"<img src='data:image/png;base64,AAAA' alt='a loaf'><iframe src='http://127.0.0.1/'></iframe></main></body></html>"
)
