"""A single GGUF file as a model: it gives the tokens of transformers with the weights that the file was written
from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.checkpoints import weights
from engine.checkpoints.gguf_blocks import PACKED_TYPES, round_to_8_bits, unpack_blocks
from engine.checkpoints.weights import WeightsError
from engine.models.config import UnsupportedModel
from engine.models.registry import read_config
from engine.text.tokenizer import Tokenizer
from tests.engine import one_thread  # noqa: F401
from tests.engine.checkpoints.made_gguf import KINDS, write, write_random
from tests.engine.driver import Driver
from tests.engine.made_checkpoints import Pusher, runner_of

PROMPT_LEN, NUM_GREEDY = 45, 32


def prompt() -> list[int]:
    return np.random.default_rng(7).integers(0, 199, PROMPT_LEN).tolist()


def greedy(model: Any) -> list[int]:
    ids = torch.tensor([prompt()])
    with torch.no_grad():
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_GREEDY, do_sample=False, pad_token_id=0
        )
    return whole[0, PROMPT_LEN:].tolist()


def ours(runner: Any) -> list[int]:
    driver = Driver(runner)
    sequence_id = driver.add(prompt(), max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True)
    driver.run()
    return driver.tokens[sequence_id]


@pytest.mark.parametrize("kind", KINDS)
def test_gguf_file_gives_the_logits_of_its_source_model(kind: str, tmp_path: Path) -> None:
    path, model = write_random(kind, tmp_path)
    runner = runner_of(path if kind == "llama 2" else path.parent)
    with torch.no_grad():
        logits = model(torch.tensor([prompt()])).logits[0, -1]
    torch.testing.assert_close(Pusher(runner).push(prompt()), logits, atol=1e-4, rtol=0)
    assert ours(runner) == greedy(model)


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantized_gguf_gives_the_tokens_of_its_dequantized_weights(quantization: str, tmp_path: Path) -> None:
    path, model = write_random("llama 2", tmp_path, quantization)
    kind = gguf.GGMLQuantizationType[quantization]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                rounded = gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), kind), kind)
                assert name.endswith("weight")
                parameter.copy_(torch.from_numpy(rounded))  # permuted rows round to the same numbers
    assert ours(runner_of(path.parent)) == greedy(model)


def test_a_model_in_several_files_is_read_from_all_of_them(tmp_path: Path) -> None:
    path, model = write_random("llama 2", tmp_path)
    parts = [path.with_name(f"model-{number:05d}-of-00002.gguf") for number in (1, 2)]
    reader = gguf.GGUFReader(path)
    for number, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, "llama")
        for field in reader.fields.values():
            if field.name.startswith("llama.") and number == 0:
                writer.add_key_value(field.name, field.contents(), field.types[0])
        writer.add_uint16("split.count", 2)
        writer.add_uint16("split.no", number)
        for tensor in reader.tensors[number::2]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    path.unlink()
    assert ours(runner_of(path.parent)) == greedy(model)
    parts[1].unlink()
    with pytest.raises(UnsupportedModel, match=r"model-00002-of-00002\.gguf does not exist"):
        read_config(path.parent)


@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_packed_matrix_equals_the_expanded_one(quantization: str, tmp_path: Path) -> None:
    path, _ = write_random("llama 2", tmp_path, quantization)
    checkpoint = weights.open_checkpoint(path)
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        source: Any = checkpoint.find(name)
        with weights.Files() as files:
            packed = source.read_quantized(files)
            whole = torch.zeros(packed.shape)
            source.fill(files, whole, 0, packed.shape[0])
        assert packed.form == checkpoint.packed_form(name)
        torch.testing.assert_close(packed.dequantize(torch.float32), whole, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", PACKED_TYPES)
def test_unpacked_blocks_equal_the_reference(name: str) -> None:
    form, kind = PACKED_TYPES[name], gguf.GGMLQuantizationType[name]
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (6, 512 // block, num_bytes), dtype=np.uint8)
    scales = rng.standard_normal((6, 512 // block, 2)).astype(np.float16).view(np.uint8)
    scale_offset = 208 if name == "Q6_K" else 0  # offset of the block's scale and minimum
    data[..., scale_offset : scale_offset + 2] = scales[..., :2]
    if form.has_offsets:
        data[..., 2:4] = scales[..., 2:]
    matrix = unpack_blocks(name, torch.from_numpy(data.reshape(6, -1)))
    assert matrix.form == form
    expected = torch.from_numpy(gguf.quants.dequantize(data.reshape(6, -1), kind))
    torch.testing.assert_close(matrix.dequantize(torch.float32), expected, atol=1e-3, rtol=1e-5)


def test_other_types_are_rounded_to_8_bits() -> None:
    values = torch.randn(5, 96, generator=torch.Generator().manual_seed(0))
    values[2, 32:64] = 0
    matrix = round_to_8_bits(values)
    peaks = values.unflatten(1, (-1, 32)).abs().amax(-1).repeat_interleave(32, 1)
    assert (matrix.dequantize(torch.float32) - values).abs().le(peaks * 0.5 / 127 + 1e-7).all()


# ── invalid files ──


def test_a_tensor_too_many_or_too_few_is_named(tmp_path: Path) -> None:
    path, _ = write_random("llama 2", tmp_path)
    checkpoint = weights.open_checkpoint(path)
    with pytest.raises(WeightsError, match=r"blk\.0\.attn_k\.weight, .* and 24 more are not used by this architecture"):
        weights.check(checkpoint, {"model.norm.weight": torch.zeros(64)})
    with pytest.raises(WeightsError, match=r"model\.layers\.9\.mlp\.up_proj\.weight is missing"):
        weights.check(checkpoint, {"model.layers.9.mlp.up_proj.weight": torch.zeros(64)})


def test_two_models_in_a_folder_are_not_guessed_between(tmp_path: Path) -> None:
    path, _ = write_random("llama 2", tmp_path)
    os.link(path, path.with_name("mmproj-F16.gguf"))
    assert read_config(path.parent).hidden_size == 64
    os.link(path, path.with_name("other.gguf"))
    with pytest.raises(UnsupportedModel, match=r"only has 2 GGUF models .*name the one to load"):
        read_config(path.parent)
    assert read_config(path).hidden_size == 64


def test_nan_in_a_quantized_tensor_is_found(tmp_path: Path) -> None:
    path, _ = write_random("llama 2", tmp_path, "Q8_0")
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight")
    with path.open("r+b") as file:
        file.seek(int(tensor.data_offset) + 34 * 5)
        file.write(b"\x00\x7e")  # the scale of a block
    with pytest.raises(WeightsError, match=r"blk\.1\.ffn_up\.weight holds NaN"):
        runner_of(path)


# ── a published model ──


def test_a_published_model_as_one_file_reads_and_writes_as_published(test_data: Path, tmp_path: Path) -> None:
    """Weights, config and vocabulary of stories260K in one GGUF file: from text to the reference's tokens and back."""
    source = test_data / "models" / "stories260K"
    vocab = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [2, 3, 3] + [6 if token.startswith("<0x") else 1 for token in tokens[3:]]
    vocabulary = {"ggml.model": "llama", "ggml.tokens": tokens, "ggml.token_type": kinds,
                  "ggml.scores": [-float(index) for index in range(len(tokens))], "ggml.bos_token_id": 1,
                  "ggml.eos_token_id": 2}  # fmt: skip
    path = tmp_path / "stories.gguf"
    write(path, "llama", source, "F32", vocabulary)
    tokenizer, runner = Tokenizer(path), runner_of(path)
    assert runner.eos_token_ids == (2,)
    for case in json.loads((source / "reference.json").read_text())["cases"][:3]:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]
        driver = Driver(runner)
        num_tokens = len(case["greedy_ids"])
        sequence_id = driver.add(case["prompt_ids"], max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        driver.run()
        assert driver.tokens[sequence_id] == case["greedy_ids"]
        assert tokenizer.decode(case["greedy_ids"]) == Tokenizer(source).decode(case["greedy_ids"])
