"""Parsing of options, file types, encodings and token counts."""

from __future__ import annotations

from typing import Any

import pytest

from documents import text_encoding, tokens
from documents.errors import DocumentRefused
from documents.kinds import find_kind
from documents.options import Options, parse_options


def test_options_accept_strings_and_ignore_unknown_fields():
    assert parse_options(None) == parse_options({}) == Options()
    given = {
        "output": {"format": "text"}, "image": {"descriptionLanguage": "de"}, "what": 1,
        "html": {"hostname": "https://a.example/", "cssSelector": "main", "images": {"convert": "true"}},
        "pdf": {"metadata": "false", "images": {"convert": True, "maxConvertedImages": "3"}}, "docx": None,
    }  # fmt: skip
    assert parse_options(given) == Options("text", "a.example", "main", False)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([], "'/'"), ({"output": "text"}, "'/output'"), ({"output": {"format": "pdf"}}, "'/output/format'"),
        ({"image": {"descriptionLanguage": "xx"}}, "'/image/descriptionLanguage'"),
        ({"html": {"images": {"maxConvertedImages": 11}}}, "'/html/images/maxConvertedImages'"),
        ({"html": {"images": {"maxConvertedImages": True}}}, "'/html/images/maxConvertedImages'"),
        ({"html": {"images": {"convertOGImage": 2}}}, "'/html/images/convertOGImage'"),
        ({"html": {"hostname": "a b"}}, "'/html/hostname'"), ({"html": {"hostname": "x/../y"}}, "'/html/hostname'"),
        ({"html": {"cssSelector": "x" * 1025}}, "'/html/cssSelector'"), ({"pdf": {"metadata": 1}}, "'/pdf/metadata'"),
        ({"docx": {"images": {"convert": "yes"}}}, "'/docx/images/convert'"),
    ],
)  # fmt: skip
def test_invalid_option_error_names_the_field(given: Any, field: str):
    with pytest.raises(ValueError, match=field):
        parse_options(given)


def test_specific_media_type_determines_the_file_type():
    def reader(name: str, media_type: str = "") -> str:
        kind = find_kind(name, media_type)
        return kind.reader if kind else ""

    assert reader("a.PDF") == reader("a", "application/pdf; x=y") == reader("a.bin", "Application/PDF") == "pdf"
    assert reader("a.docx", "application/octet-stream") == reader("a.docx", "application/zip") == "word"
    assert reader("a.exe") == reader("noext") == reader("a.pdf", "video/mp4") == ""
    assert find_kind("a.ods", "application/vnd.ms-excel") == find_kind("a.ods", "")


def test_text_is_decoded_with_its_declared_encoding():
    assert (
        text_encoding.decode("ä".encode("utf-16"))
        == text_encoding.decode("ä".encode("utf-8-sig"))
        == text_encoding.decode(b"\xe4")
        == "ä"
    )
    assert text_encoding.decode(b'<meta charset="windows-1251">' + "я".encode("cp1251")).endswith("я")
    assert text_encoding.decode(b'<meta charset="rot13">\xe4').endswith("ä")
    with pytest.raises(DocumentRefused):
        text_encoding.decode(b"a\x00b")


def test_token_estimate_is_close_to_real_tokenizers():
    prose = "The quick brown fox jumps over the lazy dog, and runs away from 1234 unbelievably angry bees."
    assert 18 <= tokens.count(prose) <= 26
    assert tokens.count("") == 0
    assert tokens.count("漢字を読む") >= 3
