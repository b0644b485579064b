"""Decodes text files. The encoding comes from the byte order mark, valid UTF-8, a declared charset, or else is
Windows-1252."""

from __future__ import annotations

import codecs
import re

from documents.errors import DocumentRefused

_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_DECLARED_CHARSET = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9._-]{2,30})""", re.I
)
# Supported declared encodings. The worker loads their codecs before it enters the sandbox.
ENCODINGS = (
    "utf-8", "utf-16-le", "utf-16-be", "ascii", "cp437", "cp1252", "iso8859-1", "iso8859-2", "iso8859-15", "cp1250",
    "cp1251", "koi8-r", "shift_jis", "cp932", "euc_jp", "iso2022_jp", "gb18030", "gbk", "gb2312", "big5",
    "euc_kr", "cp949",
)  # fmt: skip
_ALIASES = {"iso-8859-1": "cp1252", "latin1": "cp1252", "windows-1252": "cp1252"}  # as in the WHATWG Encoding Standard


def decode(data: bytes) -> str:
    """Return the text of a file. Raises DocumentRefused if the data is binary."""
    for mark, name in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(name, "replace")
    if b"\x00" in data[:4096]:
        raise DocumentRefused("the file is not text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode(_declared_encoding(data) or "cp1252", "replace")


def _declared_encoding(data: bytes) -> str | None:
    found = _DECLARED_CHARSET.search(data[:2048])
    if found is None:
        return None
    declared = found[1].decode("ascii").lower()
    try:
        name = codecs.lookup(_ALIASES.get(declared, declared)).name
    except LookupError:
        return None
    return name if name in {codecs.lookup(known).name for known in ENCODINGS} else None
