"""catalog/base_model.py: linear layers of a base model, read from the headers of its files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from catalog.base_model import read_base
from catalog.builtin import builtin_models
from catalog.card import CardFacts, ModelCard, card_of, manifest_of
from catalog.manifest import blob_key, entry_of, manifest_key
from storage.objects import Objects
from tests.catalog.adapters import spark_modules

FACTS = CardFacts(
    name="@cf/test/base", task="Text Generation", description="A base.", schema="text_generation_legacy",
    context_window=512, created_at=datetime(2026, 1, 1, tzinfo=UTC),
)  # fmt: skip


@pytest.fixture
async def objects(tmp_path: Path) -> AsyncIterator[Objects]:
    found = Objects.connect(f"file://{tmp_path / 'objects'}")
    yield found
    await found.close()


async def stored(objects: Objects, folder: Path, *files: dict[str, Any]) -> ModelCard:
    """Store weights and return the card of a model with them."""
    entries = []
    for number, tensors in enumerate(files):
        save_file(tensors, folder / f"model-{number}.safetensors")
        entries.append(entry_of(folder, f"model-{number}.safetensors"))
        await objects.put_file(blob_key(entries[-1].sha256), folder / entries[-1].path)
    manifest = manifest_of(FACTS, "MixtralForCausalLM", tuple(entries))
    await objects.put_bytes(manifest_key(manifest.revision), manifest.encode())
    return card_of(FACTS, manifest, "published")


def zeros(*shape: int, dtype: Any = np.float16) -> np.ndarray:
    return np.zeros(shape, dtype)


async def test_linear_layers_of_all_files_are_found_except_experts(objects: Objects, tmp_path: Path) -> None:
    card = await stored(
        objects,
        tmp_path,
        {
            "model.layers.0.self_attn.q_proj.weight": zeros(6, 4),
            "model.layers.0.self_attn.q_proj.bias": zeros(6),
            "model.layers.0.input_layernorm.weight": zeros(4),
            "model.embed_tokens.weight": zeros(9, 4),
            "vision_tower.encoder.layers.0.self_attn.q_proj.weight": zeros(6, 4),
        },
        {
            "model.layers.1.self_attn.q_proj.weight_packed": zeros(6, 1, dtype=np.int32),
            "model.layers.1.self_attn.k_proj.weight": zeros(6, 4, dtype=np.int8),
            "model.layers.1.self_attn.v_proj.weight": zeros(6, 2, dtype=np.uint8),
            "model.layers.1.block_sparse_moe.gate.weight": zeros(2, 4),
            "model.layers.1.block_sparse_moe.experts.0.w1.weight": zeros(5, 4),
            "model.layers.1.mlp.up_proj.weight": zeros(5, 4),
            "lm_head.weight": zeros(9, 4),
        },
    )
    base = await read_base(objects, card)
    assert base is not None
    assert base.architecture == "MixtralForCausalLM"
    assert base.targets == {
        "layers.0.self_attn.q_proj": (4, 6),
        "layers.1.self_attn.q_proj": None,
        "layers.1.self_attn.k_proj": (4, 6),
        "layers.1.self_attn.v_proj": None,
        "layers.1.mlp.up_proj": (4, 5),
    }


async def test_long_header_is_read_completely(objects: Objects, tmp_path: Path) -> None:
    tensors = {f"model.layers.{number}.self_attn.q_proj.weight": zeros(2, 1) for number in range(1000)}
    base = await read_base(objects, await stored(objects, tmp_path, tensors))
    assert base is not None
    assert len(base.targets) == 1000


async def test_built_in_base_model_is_read_from_its_folder(objects: Objects) -> None:
    base = await read_base(objects, builtin_models()["@cf/hearth/spark"].card)
    assert base is not None
    assert base.architecture == "LlamaForCausalLM"
    assert spark_modules().items() <= base.targets.items()


@pytest.mark.parametrize("damage", ["manifest", "weights", "header", "names"])
async def test_base_model_with_unsupported_files_is_none(objects: Objects, tmp_path: Path, damage: str) -> None:
    name = "transformer.h.0.attn.c_attn.weight" if damage == "names" else "model.layers.0.self_attn.q_proj.weight"
    card = await stored(objects, tmp_path, {name: zeros(2, 2)})
    if damage == "manifest":
        await objects.put_bytes(manifest_key(card.revision), b"{}")
    elif damage == "weights":
        await objects.delete(blob_key(card.files[0].sha256))
    elif damage == "header":
        await objects.put_bytes(blob_key(card.files[0].sha256), b"\xff" * 100)
    assert await read_base(objects, card) is None
