"""A SentencePiece model encodes like its `tokenizer.json`; damaged files are rejected with the reason."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Vocabulary

from engine.text.sentencepiece_model import SentencePieceError, read_sentencepiece
from engine.text.tokenizer import Tokenizer, TokenizerUnusable


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes([value])
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def number(index: int, value: int) -> bytes:
    return varint(index << 3) + varint(value)


def field(index: int, value: bytes) -> bytes:
    return varint(index << 3 | 2) + varint(len(value)) + value


def model_bytes(model_type: int, trained: bytes = b"", normalizer: bytes = b"") -> bytes:
    """Return a small model: a, b, ab, \u2581 and a control token."""
    pieces = [
        ("<unk>", 2),
        ("<s>", 3),
        ("</s>", 3),
        ("\u2581", 1),
        ("a", 1),
        ("b", 1),
        ("ab", 1),
        ("\u2581ab", 1),
        ("<t>", 4),
    ]
    data = b""
    for index, (piece, kind) in enumerate(pieces):
        score = b"\x15" + (
            b"\x00\x00\x00\x00" if kind != 1 else (b"\x00\x00\x80\xbf" if index > 5 else b"\x00\x00\x40\xc0")
        )
        data += field(1, field(1, piece.encode()) + score + number(3, kind))
    return data + field(2, number(3, model_type) + trained) + field(3, normalizer)


def test_the_converted_model_equals_its_tokenizer_json(test_data: Path) -> None:
    folder = test_data / "models/stories260K"
    definition, config = read_sentencepiece((folder / "tokenizer.model").read_bytes(), is_legacy=True)
    reference = json.loads((folder / "tokenizer.json").read_text())
    assert definition["model"]["vocab"] == reference["model"]["vocab"]
    assert definition["model"]["merges"] == [list(merge) for merge in reference["model"]["merges"]]
    for part in ("normalizer", "pre_tokenizer", "decoder", "added_tokens"):
        assert definition[part] == reference[part]
    assert config == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}


def test_a_folder_without_tokenizer_json_is_read(test_data: Path, tmp_path: Path) -> None:
    folder = test_data / "models/stories260K"
    (tmp_path / "tokenizer.model").write_bytes((folder / "tokenizer.model").read_bytes())
    (tmp_path / "added_tokens.json").write_text('{"<|call|>": 512}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ bos_token }}<|call|>{{ messages }}"}')
    tokenizer, reference = Tokenizer(tmp_path), Tokenizer(folder)
    for line in ("Once upon a time", "  two  spaces ", "\u2615 <s>", ""):
        assert tokenizer.encode(line) == reference.encode(line)
        assert tokenizer.decode(tokenizer.encode(line)) == reference.decode(reference.encode(line))
    assert tokenizer.encode_conversation([])[:2] == [1, 512]


@pytest.mark.parametrize("version", ["v1", "v3"])
def test_mistral_models_decode_what_they_encode(test_data: Path, tmp_path: Path, version: str) -> None:
    data = (test_data / f"tokenizers/mistral/tokenizer.{version}.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(data)
    tokenizer = Tokenizer(tmp_path)
    for text in ("Hello, world!", "na\u00efve \u65e5\u672c \u2615\n\n\tx  y", "<s>[INST] hi [/INST]"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (
        tokenizer.encode("Hello, world!")
        == {"v1": [1, 22557, 28725, 1526, 28808], "v3": [1, 23325, 29493, 2294, 29576]}[version]
    )
    if version == "v3":
        assert tokenizer.encode("[INST] hi[/INST]", parse_special=True)[:2] == [1, 3]


def test_bpe_and_unigram_models_encode_by_their_scores() -> None:
    for model_type in (1, 2):
        definition, config = read_sentencepiece(model_bytes(model_type), is_legacy=False)
        vocabulary = Vocabulary.from_str(json.dumps(definition))
        assert vocabulary.encode("ab ab b").tokens == ["\u2581ab", "\u2581ab", "\u2581", "b"]
        assert vocabulary.decode(vocabulary.encode("ab ab b").ids) == "ab ab b"
        assert config["add_bos_token"] is (model_type == 2)
    assert [token["special"] for token in definition["added_tokens"]] == [True, True, True, False]


def test_normalizer_and_byte_fallback_options_are_applied() -> None:
    plain, _ = read_sentencepiece(model_bytes(2, normalizer=number(3, 0) + number(4, 0)), is_legacy=True)
    assert Vocabulary.from_str(json.dumps(plain)).encode("ab").tokens == ["ab"]
    fallback, _ = read_sentencepiece(model_bytes(2, number(35, 1)), is_legacy=True)
    assert fallback["model"]["byte_fallback"]
    assert {"type": "ByteFallback"} in fallback["decoder"]["decoders"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no pieces"),
        (b"IQ== 0\nIg== 1\n", "tiktoken"),
        (b"{}", "not a SentencePiece model"),
        (b"\x0a\xff\xff\xff\xff\x0f", "exceeds the file"),
        (b"\xff" * 20, "unterminated"),
        (model_bytes(3), "model_type is word"),
        (model_bytes(2, number(24, 1)), "white space"),
        (model_bytes(2, normalizer=number(5, 0)), "white space"),
        (model_bytes(2, field(3, b"x")), "expected an integer, found bytes"),
        (field(1, field(1, b"\xff")), "damaged"),
        (field(1, field(1, b"a") + b"\x15\x00\x00\xc0\x7f"), "score is not a finite number"),
    ],
)
def test_an_invalid_model_is_rejected_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(SentencePieceError, match=message):
        read_sentencepiece(data, is_legacy=True)


@given(position=st.integers(0, 2**31), byte=st.integers(0, 255), size=st.integers(0, 2**31))
def test_any_damaged_model_is_rejected_or_read(position: int, byte: int, size: int) -> None:
    data = bytearray(model_bytes(random.Random(position).choice((1, 2))))
    data[position % len(data)] = byte
    try:
        definition, _ = read_sentencepiece(bytes(data[: 1 + size % len(data)]), is_legacy=True)
    except SentencePieceError as error:
        assert str(error)  # noqa: PT017 - both outcomes are right
    else:
        json.dumps(definition)


def test_a_damaged_model_makes_the_tokenizer_unusable(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model_bytes(2)[:-40])
    with pytest.raises(TokenizerUnusable, match=r"tokenizer\.model cannot be used: it is not a SentencePiece model"):
        Tokenizer(tmp_path)
