"""Convert a SentencePiece `tokenizer.model` to the equivalent `tokenizer.json` and `tokenizer_config.json`.

The file is one protobuf message with pieces, scores, training options and normalization. BPE merges are derived from
the scores; Unigram models keep their scores; other model types are rejected. The message is parsed here because only
a few of its fields are needed.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2
_MODEL_NAMES = {3: "word", 4: "char"}
_MAX_PIECES = 1 << 22
_MAX_MERGED_CHARS = 128  # longer pieces are not produced by merges
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n")

Definition = dict[str, Any]


class SentencePieceError(Exception):
    """The file is not a SentencePiece model, or one that is not supported; the message says why."""


@dataclass
class _Model:
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    model_type: int = _UNIGRAM
    has_byte_fallback: bool = False
    is_suffix_space: bool = False
    is_split_at_space: bool = True
    charsmap: bytes = b""
    adds_prefix: bool = True
    removes_spaces: bool = True
    escapes_spaces: bool = True

    def piece_of(self, kind: int) -> tuple[int, str] | None:
        return next(((index, self.pieces[index]) for index, each in enumerate(self.kinds) if each == kind), None)


def read_sentencepiece(data: bytes, *, is_legacy: bool) -> tuple[Definition, Definition]:
    """Return the definition and the configuration. Raises SentencePieceError.

    With `is_legacy`, a space is also put before text that follows a control token, as older versions of
    `transformers` did.
    """
    if _TIKTOKEN_LINE.match(data):
        raise SentencePieceError(
            "it is in tiktoken's format, which lacks the rules for splitting text and the added tokens"
        )
    try:
        model = _read(data)
    except (ValueError, IndexError, struct.error) as error:
        raise SentencePieceError(f"it is not a SentencePiece model or is damaged ({error})") from error
    if not model.pieces:
        raise SentencePieceError("it has no pieces")
    if model.model_type not in (_UNIGRAM, _BPE):
        kind = _MODEL_NAMES.get(model.model_type, str(model.model_type))
        raise SentencePieceError(f"its model_type is {kind}; bpe and unigram are supported")
    if model.is_suffix_space or not model.escapes_spaces:
        raise SentencePieceError("its white space options (suffix, or not escaped) are not supported")
    return _definition(model, is_legacy=is_legacy), _configuration(model)


def _definition(model: _Model, *, is_legacy: bool) -> Definition:
    unknown = model.piece_of(_UNKNOWN)
    is_bpe = model.model_type == _BPE
    normalizers, pre_tokenizer = _preprocessing(model, is_legacy=is_legacy)
    inner: Definition = {"byte_fallback": model.has_byte_fallback}
    if is_bpe:
        vocab: Any = {piece: index for index, piece in reversed(list(enumerate(model.pieces)))}
        inner |= {"type": "BPE", "vocab": vocab, "merges": _merges(model), "dropout": None, "fuse_unk": True}
        inner |= {"unk_token": unknown[1] if unknown else None, "continuing_subword_prefix": None}
        inner |= {"end_of_word_suffix": None, "ignore_merges": False}
    else:
        vocab = [[piece, score] for piece, score in zip(model.pieces, model.scores, strict=True)]
        inner |= {"type": "Unigram", "vocab": vocab, "unk_id": unknown[0] if unknown else None}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": piece, "special": kind != _USER_DEFINED, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for index, (piece, kind) in enumerate(zip(model.pieces, model.kinds, strict=True))
            if piece and kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model)},
        "model": inner,
    }


def _preprocessing(model: _Model, *, is_legacy: bool) -> tuple[list[Definition], Definition | None]:
    """Return the normalizer steps and the pre-tokenizer, which replaces spaces by `▁`."""
    steps: list[Definition] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.removes_spaces:
        steps.append({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    if model.model_type == _BPE and (is_legacy or not model.adds_prefix):
        if model.adds_prefix:
            steps.append({"type": "Prepend", "prepend": "▁"})
        return [*steps, spaces], None
    scheme = "never" if not model.adds_prefix else "always" if is_legacy else "first"
    is_split = model.model_type == _UNIGRAM and model.is_split_at_space
    return steps, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": is_split}


def _decoders(model: _Model) -> list[Definition]:
    steps: list[Definition] = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]
    if model.has_byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.adds_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps


def _merges(model: _Model) -> list[list[str]]:
    """Return every pair of pieces whose concatenation is a piece, ordered by the score of the result."""
    plain = {
        piece: index
        for index, (piece, kind) in enumerate(zip(model.pieces, model.kinds, strict=True))
        if kind == _NORMAL
    }
    found = [
        (-model.scores[index], index, plain[piece[:cut]], cut, piece)
        for piece, index in plain.items()
        for cut in range(1, min(len(piece), _MAX_MERGED_CHARS))
        if piece[:cut] in plain and piece[cut:] in plain
    ]
    return [[piece[:cut], piece[cut:]] for *_, cut, piece in sorted(found)]


def _configuration(model: _Model) -> Definition:
    """Return the special tokens by name, and whether text starts with the beginning-of-text token."""
    controls = {piece for piece, kind in zip(model.pieces, model.kinds, strict=True) if kind == _CONTROL}
    unknown = model.piece_of(_UNKNOWN)
    config: Definition = {"unk_token": unknown[1]} if unknown else {}
    config |= {
        name: piece
        for name, piece in (("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<pad>"))
        if piece in controls
    }
    return config | {"add_bos_token": model.model_type == _BPE and "bos_token" in config}


def _read(data: bytes) -> _Model:
    model = _Model()
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            score = struct.unpack("<f", _bytes(piece[2]))[0] if 2 in piece else 0.0
            if score != score or abs(score) == float("inf"):
                raise ValueError("a score is not a finite number")
            model.pieces.append(_bytes(piece.get(1, b"")).decode())
            model.scores.append(score)
            model.kinds.append(_number(piece.get(3, _NORMAL)))
            if len(model.pieces) > _MAX_PIECES:
                raise ValueError("too many pieces")
        elif number == 2:
            trained = dict(_fields(_bytes(value)))
            model.model_type = _number(trained.get(3, _UNIGRAM))
            model.is_split_at_space = bool(_number(trained.get(22, 1)))
            model.is_suffix_space = bool(_number(trained.get(24, 0)))
            model.has_byte_fallback = bool(_number(trained.get(35, 0)))
        elif number == 3:
            normalizer = dict(_fields(_bytes(value)))
            model.charsmap = _bytes(normalizer.get(2, b""))
            model.adds_prefix = bool(_number(normalizer.get(3, 1)))
            model.removes_spaces = bool(_number(normalizer.get(4, 1)))
            model.escapes_spaces = bool(_number(normalizer.get(5, 1)))
    return model


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field of a protobuf message; values are integers or bytes. Raises ValueError."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire_type = key & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if wire_type == 2:
            size, position = _varint(data, position)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"unknown wire type {wire_type} at byte {position}")
        if size > len(data) - position:
            raise ValueError(f"a field of {size} bytes exceeds the file")
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"unterminated integer at byte {position}")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("expected bytes, found an integer")
    return value


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("expected an integer, found bytes")
    return value
