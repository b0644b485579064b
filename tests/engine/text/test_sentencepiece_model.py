"""A SentencePiece model gives the ids that its converted twin gives; whatever is damaged is said so."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Vocabulary

from engine.text.sentencepiece_model import NotSentencePiece, read_sentencepiece
from engine.text.tokenizer import Tokenizer, TokenizerUnusable


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes([value])
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def made(model_type: int, trained: bytes = b"", normalised: bytes = b"") -> bytes:
    """A little model: a, b, ab, \u2581 and a control token."""
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
        data += message(1, message(1, piece.encode()) + score + number(3, kind))
    return data + message(2, number(3, model_type) + trained) + message(3, normalised)


def test_the_trained_stories_model_equals_its_converted_twin(test_data: Path) -> None:
    folder = test_data / "models/stories260K"
    definition, config = read_sentencepiece((folder / "tokenizer.model").read_bytes(), is_legacy=True)
    twin = json.loads((folder / "tokenizer.json").read_text())
    assert definition["model"]["vocab"] == twin["model"]["vocab"]
    assert definition["model"]["merges"] == [list(merge) for merge in twin["model"]["merges"]]
    for part in ("normalizer", "pre_tokenizer", "decoder", "added_tokens"):
        assert definition[part] == twin[part]
    assert config == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}


def test_a_folder_without_tokenizer_json_is_read(test_data: Path, tmp_path: Path) -> None:
    folder = test_data / "models/stories260K"
    (tmp_path / "tokenizer.model").write_bytes((folder / "tokenizer.model").read_bytes())
    (tmp_path / "added_tokens.json").write_text('{"<|call|>": 512}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ bos_token }}<|call|>{{ messages }}"}')
    tokenizer, twin = Tokenizer(tmp_path), Tokenizer(folder)
    for line in ("Once upon a time", "  two  spaces ", "\u2615 <s>", ""):
        assert tokenizer.encode(line) == twin.encode(line)
        assert tokenizer.decode(tokenizer.encode(line)) == twin.decode(twin.encode(line))
    assert tokenizer.encode_conversation([])[:2] == [1, 512]


@pytest.mark.parametrize("version", ["v1", "v3"])
def test_mistrals_models_are_read_and_spell_what_they_read(test_data: Path, tmp_path: Path, version: str) -> None:
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
        assert tokenizer.encode("[INST] hi[/INST]", is_raw=True)[:2] == [1, 3]


def test_pairs_are_joined_by_score_and_words_by_likelihood() -> None:
    for model_type in (1, 2):
        definition, config = read_sentencepiece(made(model_type), is_legacy=False)
        vocabulary = Vocabulary.from_str(json.dumps(definition))
        assert vocabulary.encode("ab ab b").tokens == ["\u2581ab", "\u2581ab", "\u2581", "b"]
        assert vocabulary.decode(vocabulary.encode("ab ab b").ids) == "ab ab b"
        assert config["add_bos_token"] is (model_type == 2)
    assert [token["special"] for token in definition["added_tokens"]] == [True, True, True, False]


def test_settings_of_the_model_are_heeded() -> None:
    plain, _ = read_sentencepiece(made(2, normalised=number(3, 0) + number(4, 0)), is_legacy=True)
    assert Vocabulary.from_str(json.dumps(plain)).encode("ab").tokens == ["ab"]
    fallback, _ = read_sentencepiece(made(2, number(35, 1)), is_legacy=True)
    assert fallback["model"]["byte_fallback"]
    assert {"type": "ByteFallback"} in fallback["decoder"]["decoders"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no pieces"),
        (b"IQ== 0\nIg== 1\n", "tiktoken"),
        (b"{}", "no SentencePiece model"),
        (b"\x0a\xff\xff\xff\xff\x0f", "ends after the file"),
        (b"\xff" * 20, "without end"),
        (made(3), "model_type is word"),
        (made(2, number(24, 1)), "suffix"),
        (made(2, normalised=number(5, 0)), "escape"),
        (made(2, message(3, b"x")), "bytes where a number belongs"),
        (message(1, message(1, b"\xff")), "damaged"),
        (message(1, message(1, b"a") + b"\x15\x00\x00\xc0\x7f"), "score is no number"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, said: str) -> None:
    with pytest.raises(NotSentencePiece, match=said):
        read_sentencepiece(data, is_legacy=True)


@given(position=st.integers(0, 2**31), byte=st.integers(0, 255), size=st.integers(0, 2**31))
def test_any_damage_is_noticed_or_harmless(position: int, byte: int, size: int) -> None:
    data = bytearray(made(random.Random(position).choice((1, 2))))
    data[position % len(data)] = byte
    try:
        definition, _ = read_sentencepiece(bytes(data[: 1 + size % len(data)]), is_legacy=True)
    except NotSentencePiece as error:
        assert str(error)  # noqa: PT017 - either way is right
    else:
        json.dumps(definition)


def test_a_damaged_model_makes_the_tokenizer_unusable(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(made(2)[:-40])
    with pytest.raises(TokenizerUnusable, match=r"tokenizer\.model cannot be used: it is no SentencePiece model"):
        Tokenizer(tmp_path)
