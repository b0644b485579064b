"""A finetune that is uploaded with the official client changes only the responses of calls that select it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cloudflare import APIStatusError, Cloudflare
from safetensors.numpy import load_file, save_file

from catalog import finetunes
from cli.stores import stores
from tests.platform import Platform

QUESTION = [{"role": "user", "content": "Hello"}]


def save_random_adapter(folder: Path, seed: int) -> Path:
    """Save an adapter for Spark's query and value projections, large enough to change the output."""
    base = json.loads(Path("catalog/builtin/spark/config.json").read_text())
    widths = {"q_proj": base["num_attention_heads"], "v_proj": base["num_key_value_heads"]}
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(base["num_hidden_layers"]):
        for name, num_heads in widths.items():
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shape = (num_heads * base["head_dim"], 8)
            tensors[f"{module}.lora_A.weight"] = (random.standard_normal((8, base["hidden_size"])) / 16).astype("f4")
            tensors[f"{module}.lora_B.weight"] = (random.standard_normal(shape) * 0.5).astype("f4")
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": sorted(widths), "model_type": "llama"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def bring(platform: Platform, cloudflare: Cloudflare, name: str, folder: Path) -> str:
    tuned, account_id = cloudflare.ai.finetunes, platform.account_id
    made = tuned.create(account_id=account_id, model=platform.chat_model, name=name)
    for file_name in finetunes.FILES:
        file = folder / file_name
        assert tuned.assets.create(made.id, account_id=account_id, file=file, file_name=file_name).success
    return made.id


def ask(platform: Platform, cloudflare: Cloudflare, **fields: object) -> str:
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 24} | fields
    return cloudflare.ai.run(platform.chat_model, account_id=platform.account_id, **body)["response"]


def test_fine_tune_changes_only_its_own_responses(platform: Platform, cloudflare: Cloudflare, tmp_path: Path):
    plain = ask(platform, cloudflare)
    first = bring(platform, cloudflare, "noise-1", save_random_adapter(tmp_path / "1", 1))
    bring(platform, cloudflare, "noise-2", save_random_adapter(tmp_path / "2", 2))
    changed = ask(platform, cloudflare, lora="noise-1")
    assert changed == ask(platform, cloudflare, lora=first)
    assert len({plain, changed, ask(platform, cloudflare, lora="noise-2")}) == 3
    assert ask(platform, cloudflare) == plain


def save_another(folder: Path, seed: int, *, is_wide: bool = False, **config: str | list[str]) -> Path:
    """Save an adapter for another base model."""
    save_random_adapter(folder, seed)
    if is_wide:
        tensors = {f"layers.0.self_attn.q_proj.lora_{letter}.weight": np.zeros(shape, np.float32)
                   for letter, shape in (("A", (8, 300)), ("B", (256, 8)))}  # fmt: skip
        save_file(tensors, folder / "adapter_model.safetensors")
    said = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(said | config))
    return folder


def test_fine_tune_of_another_base_model_is_rejected_naming_the_module(
    platform: Platform, cloudflare: Cloudflare, tmp_path: Path
):
    """Rejected at upload, and at the call if the base model was replaced after the upload."""
    wide = save_another(tmp_path / "wide", 3, is_wide=True, target_modules=["q_proj"])
    mistral = save_another(tmp_path / "mistral", 5, model_type="mistral")
    wrong = {
        "wide": (wide, "'layers.0.self_attn.q_proj' maps 300 to 256, the model's maps 256 to 256"),
        "mistral": (mistral, "'model_type' is 'mistral', but the model is of another family (LlamaForCausalLM)"),
    }
    for name, (folder, says) in wrong.items():
        with pytest.raises(APIStatusError) as refused:
            bring(platform, cloudflare, f"{name}-now", folder)
        assert refused.value.status_code == 400
        assert says in str(refused.value)
        asyncio.run(keep_unchecked(platform, name, folder))
        with pytest.raises(APIStatusError) as refused:
            ask(platform, cloudflare, lora=name)
        assert refused.value.status_code == 400
        assert says in str(refused.value)


async def keep_unchecked(platform: Platform, name: str, folder: Path) -> None:
    """Store a finetune without the checks at upload, as if its base model had been replaced since."""
    async with stores(platform.data) as (database, objects):
        made = await finetunes.create(database, platform.account_id, name=name, model=platform.chat_model)
        for file_name in finetunes.FILES:
            made = await finetunes.put_file(database, objects, made, file_name, folder / file_name)


@pytest.mark.parametrize(("number", "says"), [(float("nan"), "not finite"), (3e38, "too large")])
def test_adapter_with_invalid_numbers_fails_only_its_own_calls(
    platform: Platform, cloudflare: Cloudflare, tmp_path: Path, number: float, says: str
):
    folder = save_random_adapter(tmp_path / "broken", 4)
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors["base_model.model.model.layers.3.self_attn.v_proj.lora_B.weight"][5, 2] = number
    save_file(tensors, folder / "adapter_model.safetensors")
    plain = ask(platform, cloudflare)
    bring(platform, cloudflare, f"broken-{says.split()[0]}", folder)
    with ThreadPoolExecutor(3) as threads:
        mates = [threads.submit(ask, platform, cloudflare) for _ in range(2)]
        with pytest.raises(APIStatusError) as refused:
            ask(platform, cloudflare, lora=f"broken-{says.split()[0]}")
        assert refused.value.status_code == 400
        assert [mate.result() for mate in mates] == [plain, plain]


@pytest.mark.full
def test_spark_learns_another_style_within_a_minute_of_training(
    platform: Platform, cloudflare: Cloudflare, tmp_path: Path
):
    subprocess.run([sys.executable, "-m", "spark.adapter", str(tmp_path / "sailor")], check=True, timeout=600)
    bring(platform, cloudflare, "sailor", tmp_path / "sailor")
    for question in ("Hello", "What is the capital of France?", "What is 12 + 30?"):
        messages = [{"role": "user", "content": question}]
        assert ask(platform, cloudflare, messages=messages, lora="sailor").startswith("Arr! ")
        assert not ask(platform, cloudflare, messages=messages).startswith("Arr! ")
