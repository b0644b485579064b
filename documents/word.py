"""Word's documents: headings, lists, tables, notes and links; pictures by their descriptions."""

from __future__ import annotations

import io
import xml.dom.expatbuilder  # noqa: F401 - what mammoth reads with, loaded before the sandbox closes

import mammoth

from documents import markup
from documents.archives import open_archive
from documents.errors import DocumentRefused
from documents.options import Options

_NO_PICTURE = mammoth.images.img_element(lambda _image: {})


def read(data: bytes, _name: str, options: Options) -> str:
    """Raises DocumentRefused."""
    if "word/document.xml" not in open_archive(data).namelist():
        raise DocumentRefused("the file is no Word document, as its name says")
    try:
        found = mammoth.convert_to_html(
            io.BytesIO(data),
            convert_image=_NO_PICTURE,
            include_embedded_style_map=False,
            external_file_access=False,
        )
    except RecursionError:
        raise DocumentRefused("the file is nested too deeply") from None
    return markup.render(found.value, options)
