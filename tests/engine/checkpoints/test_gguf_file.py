"""GGUF headers: valid ones are read completely, invalid ones are rejected with the file's name, and quantized rows
equal the values of another implementation of the format.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoints import gguf_file, gguf_weights, weights
from engine.checkpoints.gguf_config import _FAMILIES, gguf_config
from engine.checkpoints.gguf_file import GgufError, GgufFile, GgufTensor, find_gguf, read_gguf
from engine.checkpoints.gguf_tokenizer import gguf_tokenizer
from engine.checkpoints.weights import WeightsError
from engine.models.config import UnsupportedModel
from engine.models.registry import parse_config
from tests.engine import one_thread  # noqa: F401

_U32, _STRING, _ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...] = (4, 2), kind: int = 0, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack("<I", len(shape))
        + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, offset)
    )


ARCHITECTURE = key("general.architecture", _STRING, text("llama"))


def file_of(
    keys: list[bytes],
    tensors: list[bytes],
    data: int = 32,
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    counts: tuple[int, int] | None = None,
) -> bytes:
    head = magic + struct.pack("<IQQ", version, *(counts or (len(tensors), len(keys)))) + b"".join(keys + tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def at(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


def test_values_of_every_type_are_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    numbers = {"uint8": 200, "int8": -3, "uint16": 60000, "int16": -300, "uint32": 4_000_000_000, "int32": -70000,
               "uint64": 1 << 63, "int64": -(1 << 62), "float32": 0.5, "float64": 0.1, "bool": True}  # fmt: skip
    for name, value in numbers.items():
        getattr(writer, f"add_{name}")(f"a.{name}", value)
    writer.add_string("a.string", "naïve 日本")
    writer.add_array("a.strings", ["x", "", "日本"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = read_gguf(tmp_path / "m.gguf").metadata
    assert {name: metadata[f"a.{name}"] for name in numbers} == numbers
    assert metadata["a.string"] == "naïve 日本"
    assert metadata["a.strings"] == ["x", "", "日本"]
    assert (metadata["a.numbers"], metadata["a.floats"]) == ([1, -2, 3], [0.5, -1.0])


BAD = {
    "empty": b"",
    "another format": file_of([], [], magic=b"GGML"),
    "the first version": file_of([], [], version=1),
    "big-endian": file_of([], [], version=3 << 24),
    "a bomb of keys": file_of([ARCHITECTURE], [], counts=(0, 1 << 60)),
    "a bomb of tensors": file_of([ARCHITECTURE], [], counts=(1 << 60, 1)),
    "a key twice": file_of([ARCHITECTURE, ARCHITECTURE], []),
    "an endless text": file_of([struct.pack("<Q", 1 << 62)], []),
    "an endless list": file_of([key("a", _ARRAY, struct.pack("<IQ", _U32, 1 << 60))], []),
    "an endless list of texts": file_of([key("a", _ARRAY, struct.pack("<IQ", _STRING, 1 << 60))], []),
    "lists of lists": file_of([key("a", _ARRAY, struct.pack("<IQ", _ARRAY, 1))], []),
    "an unknown type of value": file_of([key("a", 99, b"")], []),
    "an alignment of nothing": file_of([key("general.alignment", _U32, struct.pack("<I", 0))], []),
    "a tensor twice": file_of([], [tensor("a"), tensor("a")]),
    "overlap": file_of([], [tensor("a"), tensor("b", offset=16)], 64),
    "the same place": file_of([], [tensor("a"), tensor("b")]),
    "beyond the file": file_of([], [tensor("a")], 31),
    "far beyond the file": file_of([], [tensor("a", offset=1 << 63)]),
    "an absurd shape": file_of([], [tensor("a", (1 << 62, 1 << 62))]),
    "no dimensions": file_of([], [tensor("a", ())]),
    "many dimensions": file_of([], [tensor("a", (1,) * 9)]),
    "a size of nothing": file_of([], [tensor("a", (4, 0))]),
    "half a block": file_of([], [tensor("a", (16, 2), kind=8)], 64),
    "an unknown quantization": file_of([], [tensor("a", kind=999)]),
    "parts without names": file_of([key("split.count", 2, struct.pack("<H", 3))], []),
    "too many parts": file_of([key("split.count", 2, struct.pack("<H", 60000))], []),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_header_is_rejected_with_the_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"^model\.gguf"):
        read_gguf(at(tmp_path, BAD[name]))


def test_a_header_of_more_values_than_a_vocabulary_has_is_refused_before_they_take_memory(tmp_path: Path) -> None:
    many = 9_000_000
    for kind, data in ((0, bytes(many)), (_STRING, bytes(8 * many))):
        path = at(tmp_path, file_of([key("a", _ARRAY, struct.pack("<IQ", kind, many) + data)], []))
        with pytest.raises(GgufError, match=r"^model\.gguf: more than 8388608 values in the header"):
            read_gguf(path)


def test_parts_that_repeat_a_tensor_are_refused(tmp_path: Path) -> None:
    count = key("split.count", 2, struct.pack("<H", 2))
    for number in (1, 2):
        (tmp_path / f"m-{number:05d}-of-00002.gguf").write_bytes(file_of([count], [tensor("a")]))
    path = find_gguf(tmp_path)
    assert path is not None
    with pytest.raises(GgufError, match="tensor a is in two of its files"):
        read_gguf(path)


def sound() -> bytes:
    facts = [("block_count", 1), ("embedding_length", 4), ("feed_forward_length", 8), ("attention.head_count", 2)]
    keys = [ARCHITECTURE, *(key(f"llama.{name}", _U32, struct.pack("<I", value)) for name, value in facts)]
    keys.append(key("tokenizer.ggml.model", _STRING, text("llama")))
    keys.append(
        key("tokenizer.ggml.tokens", _ARRAY, struct.pack("<IQ", _STRING, 3) + text("a") + text("b") + text("ab"))
    )
    keys.append(key("tokenizer.ggml.scores", _ARRAY, struct.pack("<IQ3f", 6, 3, 0.0, 0.0, 1.0)))
    return file_of(keys, [tensor("token_embd.weight", (4, 3)), tensor("rope_freqs.weight", (1,), offset=64)], 68)


@given(at_byte=st.integers(0, 10_000), value=st.integers(0, 255), length=st.integers(0, 10_000), is_cut=st.booleans())
def test_a_changed_byte_or_a_cut_never_does_more_than_raise(
    at_byte: int, value: int, length: int, is_cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(sound())
    content[at_byte % len(content)] = value
    content = content[: length % len(content)] if is_cut else content
    folder = tmp_path_factory.getbasetemp() / "changed-gguf"
    folder.mkdir(exist_ok=True)
    path = at(folder, bytes(content))
    try:
        file = read_gguf(path)
        for found in file.tensors.values():
            assert found.offset + found.size_bytes <= len(content)
        gguf_config(file)
        gguf_tokenizer(file)
    except GgufError:
        pass
    try:
        checkpoint = weights.open_checkpoint(path)
        weights.load(checkpoint, {"model.embed_tokens.weight": torch.zeros(3, 4)})
    except WeightsError:
        pass


def test_a_file_that_shrinks_after_its_header_was_read_is_noticed(tmp_path: Path) -> None:
    path = at(tmp_path, sound())
    checkpoint = weights.open_checkpoint(path)
    os.truncate(path, path.stat().st_size - 40)
    with pytest.raises(WeightsError, match="ends inside token_embd"):
        weights.load(checkpoint, {"model.embed_tokens.weight": torch.zeros(3, 4)})


FACTS = ("embedding_length", "block_count", "feed_forward_length", "attention.head_count")
FOURS = struct.pack("<IQ2I", _U32, 2, 4, 4)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([], "general.architecture=''"),
        ([key("general.architecture", _STRING, text("mamba"))], "architecture='mamba' is not supported"),
        ([ARCHITECTURE], "llama.embedding_length is missing"),
        ([ARCHITECTURE, *(key(f"llama.{name}", _ARRAY, FOURS) for name in FACTS)], "differs between layers"),
    ],
)
def test_metadata_that_says_too_little_is_refused_by_key(keys: list[bytes], message: str, tmp_path: Path) -> None:
    file = read_gguf(at(tmp_path, file_of(keys, [tensor("token_embd.weight")])))
    with pytest.raises(GgufError, match=message):
        gguf_config(file)


ODD = st.sampled_from(
    [0, -1, 1, 2, 46, 62, 8, 1 << 40, 0.0, float("nan"), float("inf"), 0.5, "x", "yarn", [1, 2], True]
)
KEYS = ["rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "expert_count",
        "rope.scaling.original_context_length", "attention.head_count", "attention.key_length", "embedding_length",
        "block_count", "rope.freq_base", "rope.freq_base_swa", "attention.sliding_window", "expert_used_count",
        "attention.layer_norm_rms_epsilon", "final_logit_softcapping"]  # fmt: skip
FACTORS = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"]


@pytest.mark.parametrize("architecture", _FAMILIES)
@settings(max_examples=40)
@given(
    odd=st.dictionaries(st.sampled_from(KEYS), ODD, max_size=4),
    token_ids=st.dictionaries(st.sampled_from(["bos", "eos", "eot"]), ODD, max_size=2),
    factors=st.sets(st.sampled_from(FACTORS)),
)
def test_whatever_metadata_says_it_is_read_or_refused(
    architecture: str, odd: dict[str, Any], token_ids: dict[str, Any], factors: set[str], tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "factors"
    path.write_bytes(struct.pack("<4f", 1, 2, 3, 8))
    facts = {"embedding_length": 64, "block_count": 2, "feed_forward_length": 96, "attention.head_count": 8} | odd
    metadata = {f"{architecture}.{name}": value for name, value in facts.items()}
    metadata |= {f"tokenizer.ggml.{name}_token_id": value for name, value in token_ids.items()}
    tensors = {name: GgufTensor(path, name, "F32", (4,), 0, 16) for name in factors}
    tensors["token_embd.weight"] = GgufTensor(path, "token_embd.weight", "F32", (128, 64), 0, 4)
    with contextlib.suppress(GgufError, UnsupportedModel):  # any other exception fails the test
        parse_config(gguf_config(GgufFile(path, {"general.architecture": architecture} | metadata, tensors)))


# ── rows ──

_KINDS = ["Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ2_S",
          "IQ2_XXS", "IQ1_S"]  # fmt: skip
# Byte offsets of the half-precision floats in a block: random bytes there would be infinite or NaN one time in 32.
_HALVES = {"Q4_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


@pytest.mark.parametrize("kind", _KINDS)
def test_rows_equal_the_values_of_transformers(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    from transformers.integrations.gguf.dequant import dequantize

    monkeypatch.setattr(gguf_weights, "PIECE_ELEMENTS", 1500)
    number = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[number]
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (7, 512 // block, block_bytes)).astype(np.uint8)
    for place in _HALVES.get(kind, (0,)):
        halves = rng.uniform(0.01, 2.0, data.shape[:2]).astype(np.float16)
        data[:, :, place : place + 2] = halves[..., None].view(np.uint8)
    expected = dequantize(torch.from_numpy(data.reshape(-1)), int(number)).reshape(7, 512)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2")
    writer.add_block_count(1)
    writer.add_tensor("blk.0.ffn_up.weight", data.reshape(7, -1), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    destination = torch.zeros(7, 512)
    weights.load(weights.open_checkpoint(tmp_path / "m.gguf"), {"model.layers.0.mlp.up_proj.weight": destination})
    torch.testing.assert_close(destination, expected, rtol=1e-6, atol=1e-6)


def test_q4_k_block_equals_the_format_definition(tmp_path: Path) -> None:
    """Compare with a block written by hand: eight groups of 32, with six-bit scales and minima spread over twelve
    bytes.
    """
    rng = np.random.default_rng(1)
    scale, least = np.float16(0.37), np.float16(0.11)
    scales, minima = rng.integers(0, 64, 8), rng.integers(0, 64, 8)
    levels = rng.integers(0, 16, 256)
    packed = np.zeros(12, np.uint8)
    for group in range(4):
        packed[group] = scales[group] | (scales[group + 4] >> 4) << 6
        packed[group + 4] = minima[group] | (minima[group + 4] >> 4) << 6
        packed[group + 8] = (scales[group + 4] & 15) | (minima[group + 4] & 15) << 4
    halves = [levels[start : start + 32] | levels[start + 32 : start + 64] << 4 for start in range(0, 256, 64)]
    content = np.array([scale, least]).tobytes() + packed.tobytes() + np.concatenate(halves).astype(np.uint8).tobytes()
    expected = [
        np.float32(scale) * scales[index // 32] * level - np.float32(least) * minima[index // 32]
        for index, level in enumerate(levels)
    ]
    block = tensor("blk.0.ffn_up.weight", (256, 1), kind=12)
    count = key("qwen2.block_count", _U32, struct.pack("<I", 1))
    whole = file_of([key("general.architecture", _STRING, text("qwen2")), count], [block], 0) + content
    destination = torch.zeros(1, 256)
    weights.load(weights.open_checkpoint(at(tmp_path, whole)), {"model.layers.0.mlp.up_proj.weight": destination})
    torch.testing.assert_close(destination[0], torch.tensor(np.array(expected, np.float32)), rtol=1e-6, atol=1e-6)


def test_header_larger_than_the_first_read_is_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"word {index}" for index in range(300)]
    values = struct.pack("<IQ", _STRING, len(words)) + b"".join(map(text, words))
    path = at(tmp_path, file_of([ARCHITECTURE, key("tokenizer.ggml.tokens", _ARRAY, values)], [tensor("one")]))
    whole = read_gguf(path)
    assert whole.metadata["tokenizer.ggml.tokens"] == words
    monkeypatch.setattr(gguf_file, "_USUAL_HEADER_BYTES", 1000)
    assert read_gguf(path) == whole
