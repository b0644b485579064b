"""Models stored in each format give the tokens that transformers computes from the dequantized weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints import weights
from tests.engine import one_thread  # noqa: F401
from tests.engine.checkpoints.made import (
    AWQ,
    GPTQ,
    awq_tensors,
    compressed_tensors,
    gptq_tensors,
    nearest_levels,
    random_levels,
    said_by_compressed_tensors,
    save,
)
from tests.engine.driver import Driver
from tests.engine.made_checkpoints import Pusher, runner_of, save_random

PROMPT_LEN, NUM_GREEDY = 45, 32
WIDTHS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]  # tensors in the file, and the weight that they encode


def in_levels(pack: Callable[..., dict[str, Any]], bits: int = 4, **options: Any) -> Callable[[str, Any], Stored]:
    def store(base: str, weight: torch.Tensor) -> Stored:
        levels = nearest_levels(weight.numpy(), 32, bits)
        return pack(base, levels, **options), levels.weight()

    return store


def in_float8(base: str, weight: torch.Tensor) -> Stored:
    """Store one scale per 32 × 32 block; DeepSeek's and Qwen's 8-bit checkpoints have one per 128 × 128."""
    blocks = weight.unflatten(0, (-1, 32)).unflatten(2, (-1, 32))  # [a, 32, b, 32]
    scales = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    back = (codes.float() * scales[:, None, :, None]).reshape(weight.shape)
    return {f"{base}.weight": codes.reshape(weight.shape), f"{base}.weight_scale_inv": scales}, back


FORMATS: dict[str, tuple[dict[str, Any], Callable[[str, Any], Stored]]] = {
    "gptq int4": (GPTQ, in_levels(gptq_tensors)),
    "gptq int8": (GPTQ | {"bits": 8}, in_levels(gptq_tensors, 8)),
    "gptq version 2": (GPTQ | {"checkpoint_format": "gptq_v2"}, in_levels(gptq_tensors, is_version_1=False)),
    "awq": (AWQ, in_levels(awq_tensors)),
    "compressed-tensors int4": (said_by_compressed_tensors(), in_levels(compressed_tensors)),
    "compressed-tensors int8": (said_by_compressed_tensors(8), in_levels(compressed_tensors, 8)),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, in_float8),
}


class Model:
    """A random model whose matrices are stored by `store`, and transformers' model of the same values."""

    def __init__(self, folder: Path, said: dict[str, Any], store: Callable[[str, Any], Stored]) -> None:
        self.folder = folder
        self.hf = save_random("llama 2", folder, **WIDTHS)
        tensors = load_file(folder / "model.safetensors")
        parameters = dict(self.hf.named_parameters())
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            stored, weight = store(name.removesuffix(".weight"), tensors.pop(name))
            tensors |= stored
            with torch.no_grad():
                parameters[name].copy_(weight)
        write(folder, tensors, said)

    def greedy(self, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            whole = self.hf.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_GREEDY, do_sample=False, pad_token_id=0
            )
        return whole[0, len(prompt) :].tolist()


def write(folder: Path, tensors: dict[str, torch.Tensor], said: dict[str, Any]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": said}))


@pytest.mark.parametrize("name", FORMATS)
def test_llama_in_each_format_gives_the_tokens_of_its_dequantized_weights(name: str, tmp_path: Path) -> None:
    said, store = FORMATS[name]
    model = Model(tmp_path, said, store)
    prompt = np.random.default_rng(7).integers(0, 199, PROMPT_LEN).tolist()
    driver = Driver(runner_of(tmp_path))
    sequence_id = driver.add(prompt, max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True)
    driver.run()
    assert driver.tokens[sequence_id] == model.greedy(prompt)


def test_gpt_oss_with_mxfp4_experts_gives_the_tokens_of_its_dequantized_weights(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    hf = save_random("gpt-oss", tmp_path, **WIDTHS | {"intermediate_size": 64})
    tensors = load_file(tmp_path / "model.safetensors")
    rng = np.random.default_rng(0)
    parameters = dict(hf.named_parameters())
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        num_experts, num_in, num_out = tensors.pop(name).shape
        blocks = torch.from_numpy(rng.integers(0, 256, (num_experts, num_out, num_in // 32, 16)).astype(np.uint8))
        scales = torch.from_numpy(rng.integers(122, 126, (num_experts, num_out, num_in // 32)).astype(np.uint8))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        with torch.no_grad():
            parameters[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    write(tmp_path, tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    prompt = rng.integers(0, 199, PROMPT_LEN).tolist()
    with torch.no_grad():
        logits = hf(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(Pusher(runner_of(tmp_path)).push(prompt), logits, atol=3e-4, rtol=0)


@pytest.mark.parametrize(
    ("tensors", "dtype"),
    [
        (gptq_tensors("x", random_levels(64, 64, 32)), torch.bfloat16),
        ({"x.weight": torch.ones(9, 9).to(torch.float8_e4m3fn)}, torch.bfloat16),
        ({"x.weight": torch.ones(9, 9), "y.weight": torch.ones(9, 9).half()}, torch.float32),
        ({"x.weight": torch.ones(9, 9), "y.weight": torch.ones(19, 9).half()}, torch.float16),
    ],
)
def test_type_of_most_bytes_decides_the_type_of_the_model(
    tensors: dict[str, torch.Tensor], dtype: torch.dtype, tmp_path: Path
) -> None:
    assert save(tmp_path, tensors, GPTQ).dtype == dtype


def test_missing_quantization_config_is_reported_with_a_stored_tensor(tmp_path: Path) -> None:
    model = Model(tmp_path, *FORMATS["gptq int4"])
    config = json.loads((model.folder / "config.json").read_text())
    del config["quantization_config"]
    (model.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(weights.WeightsError, match=r"q_proj\.weight, .* missing; .*q_proj\.g_idx is stored"):
        runner_of(model.folder)
