"""Reader of Word documents: headings, lists, tables, notes and links. Images are replaced by their descriptions."""

from __future__ import annotations

import io
import xml.dom.expatbuilder  # noqa: F401 - mammoth imports it lazily, which the sandbox does not allow

import mammoth

from documents import markup
from documents.archives import open_archive
from documents.errors import DocumentRefused
from documents.options import Options

_WITHOUT_IMAGE_DATA = mammoth.images.img_element(lambda _image: {})


def read(data: bytes, _name: str, options: Options) -> str:
    """Return the text of a .docx file. Raises DocumentRefused."""
    if "word/document.xml" not in open_archive(data).namelist():
        raise DocumentRefused("the file is not a Word document")
    found = mammoth.convert_to_html(
        io.BytesIO(data),
        convert_image=_WITHOUT_IMAGE_DATA,
        include_embedded_style_map=False,
        external_file_access=False,
    )
    return markup.render(found.value, options)
