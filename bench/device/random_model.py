"""A random Llama with an untied head, in bfloat16 or with fp8 matrices, written to a folder as safetensors. Values are
drawn on the device.

Throughput does not depend on the values, as long as they are not zeros; the scale keeps logits in a realistic range.
The tokenizer has an entry of plain letters for each token, so that every token is text at once.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 64, "intermediate_size": 688, "vocab_size": 4096},
    "1B": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256},
    "8B": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256},
    "m110": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
             "head_dim": 64, "intermediate_size": 2048, "vocab_size": 32000},
}  # fmt: skip
_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_FLOAT8_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
_FLOAT8_CONFIG = {
    "quant_method": "compressed-tensors", "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _FLOAT8_WEIGHTS}},
}  # fmt: skip
_TYPES = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F32": torch.float32}
_WRITERS = 8
_SCALE = 1.3  # times the inverse root of a row's length; the standard deviation of logits


def tensor_shapes(shape: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the checkpoint by name."""
    width, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape["vocab_size"], width),
        "lm_head.weight": (shape["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    for number in range(shape["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        found |= {
            f"{prefix}self_attn.q_proj.weight": (queries, width),
            f"{prefix}self_attn.k_proj.weight": (keys, width),
            f"{prefix}self_attn.v_proj.weight": (keys, width),
            f"{prefix}self_attn.o_proj.weight": (width, queries),
            f"{prefix}mlp.gate_proj.weight": (inner, width),
            f"{prefix}mlp.up_proj.weight": (inner, width),
            f"{prefix}mlp.down_proj.weight": (width, inner),
            f"{prefix}input_layernorm.weight": (width,),
            f"{prefix}post_attention_layernorm.weight": (width,),
        }
    return found


def written(folder: Path, shape_name: str, device: torch.device, *, is_float8: bool = False) -> Path:
    """Return the folder of the model within `folder`. Writes the model if a part before has not done so."""
    model = folder / (f"{shape_name}-fp8" if is_float8 else shape_name)
    if not (model / "config.json").exists():
        write_random(model, shape_name, device, is_float8=is_float8)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return model


def write_random(folder: Path, shape_name: str, device: torch.device, *, is_float8: bool = False) -> int:
    """Write the model and return the bytes of its weights. The config is written last."""
    shape = SHAPES[shape_name]
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder, shape["vocab_size"])
    shapes, end = tensor_shapes(shape), 0
    header: dict[str, dict[str, Any]] = {}
    types = dict.fromkeys(shapes, "BF16")
    if is_float8:
        matrices = [name for name, size in shapes.items() if len(size) > 1 and "embed" not in name]
        types |= dict.fromkeys(matrices, "F8_E4M3") | {f"{name}_scale": "F32" for name in matrices}
        shapes |= {f"{name}_scale": (shapes[name][0], 1) for name in matrices}
    for name, size in shapes.items():
        num_bytes = _TYPES[types[name]].itemsize * torch.Size(size).numel()
        header[name] = {"dtype": types[name], "shape": size, "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + end)

    def write(numbered: tuple[int, str]) -> None:
        seed, name = numbered
        size = shapes[name]
        dtype = _TYPES[types[name]]
        values = torch.ones(size, dtype=torch.bfloat16, device=device)
        if dtype == torch.float32:  # the scales of 8-bit floats with a standard deviation of 1
            values *= _SCALE * shapes[name.removesuffix("_scale")][-1] ** -0.5
        elif len(size) > 1:
            generator = torch.Generator(device).manual_seed(seed)
            values.normal_(std=_SCALE * size[-1] ** -0.5 if dtype == torch.bfloat16 else 1.0, generator=generator)
        data = values.to(dtype).cpu().view(torch.uint8).numpy()
        with path.open("r+b") as file:
            file.seek(8 + len(head) + header[name]["data_offsets"][0])
            file.write(data.data.cast("B"))

    with ThreadPoolExecutor(_WRITERS) as writers:
        list(writers.map(write, enumerate(shapes)))
    quantization = {"quantization_config": _FLOAT8_CONFIG} if is_float8 else {}
    (folder / "config.json").write_text(json.dumps(_CONFIG | shape | quantization))
    return end


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = [*alphabet, *(f"w{number}" for number in range(vocab_size - len(alphabet)))]
    tokenizer = Tokenizer(models.BPE({entry: number for number, entry in enumerate(entries)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
