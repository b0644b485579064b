"""variants/: quantized models are close to their base, reproducible, or rejected with the matrix or option."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints import weights
from engine.checkpoints.quantized import QuantizedTensor
from engine.kernels.native.chosen import find_native_kernels
from engine.kernels.reference import Kernels
from engine.report import RUNNING
from engine.runner import Runner
from tests.engine import one_thread  # noqa: F401
from tests.engine.adapters.made import random_matrices, save_adapter
from tests.engine.checkpoints.made import GPTQ, gptq_tensors
from tests.engine.checkpoints.test_stored_models import Model, in_levels
from tests.engine.made_checkpoints import Pusher, runner_of, save_random
from variants.comparison import Float8Products, Pair, TextTooShort, read_tokens, windows_of
from variants.recipe import Recipe, RecipeError, make_recipe
from variants.rounding import round_by_group, round_by_output, round_to_float8
from variants.variant import Written, plan_variant, write_variant

INT8, INT4, FP8 = Recipe("int8"), Recipe("int4", 32), Recipe("fp8")
WIDTHS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 208}
CHANGES: dict[str, dict[str, Any]] = {"gemma2": {"head_dim": 16}, "deepseek v2": {"num_key_value_heads": 4}}
SPARK = Path(__file__).parents[2] / "catalog/builtin/spark"


def make_variant(base: Path, folder: Path, recipe: Recipe) -> Written:
    folder.mkdir()
    return write_variant(base, plan_variant(base, recipe), folder)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("recipe", [FP8, INT8, INT4], ids=lambda recipe: recipe.format)
@pytest.mark.parametrize(
    "kind", ["tied, with biases", "mistral", "gemma2", "cohere2", "mixtral", "deepseek v2", "phi3", "olmo2"]
)
def test_variant_of_each_family_computes_nearly_the_same_logits(kind: str, recipe: Recipe, tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "variant"
    save_random(kind, base, **(WIDTHS | CHANGES.get(kind, {})))
    written = make_variant(base, folder, recipe)
    assert written.variant_bytes == sum(each.nbytes for each in load_file(folder / "model.safetensors").values())
    prompt = np.random.default_rng(3).integers(3, 190, 24).tolist()
    ours = Pusher(runner_of(folder, Float8Products() if recipe == FP8 else None, dtype="bfloat16")).push(prompt)
    reference = Pusher(runner_of(folder, Kernels(), dtype="float32")).push(prompt)
    original = Pusher(runner_of(base, dtype="float32")).push(prompt)
    assert torch.corrcoef(torch.stack((ours, reference)))[0, 1] > (0.95 if recipe == FP8 else 0.98)
    assert torch.corrcoef(torch.stack((ours, original)))[0, 1] > {FP8: 0.93, INT8: 0.97, INT4: 0.8}[recipe]


@pytest.mark.parametrize("recipe", [INT8, INT4], ids=lambda recipe: recipe.format)
def test_same_recipe_gives_the_same_bytes_and_little_quality_is_lost(recipe: Recipe, tmp_path: Path) -> None:
    written = make_variant(SPARK, tmp_path / "first", recipe)
    make_variant(SPARK, tmp_path / "second", recipe)
    assert digests(tmp_path / "first") == digests(tmp_path / "second")
    # three quarters, because a quarter of spark is its embedding
    assert written.variant_bytes < 0.75 * written.base_bytes
    text = "What is the capital of France? Tell me a short story about a small dog who finds a red ball. " * 6
    quality = Pair(SPARK, tmp_path / "first").compare(read_tokens(SPARK, text))
    assert quality.num_tokens > 64
    assert quality.kl_divergence < (0.01 if recipe == INT8 else 0.2)
    assert quality.top1_agreement > (0.95 if recipe == INT8 else 0.8)
    native = find_native_kernels()
    # Other products round the sums that the native packed product keeps in float32.
    close = 0.02 if native is not None and native.has_packed else 0.04
    expected = pytest.approx(quality.base_perplexity, rel=close if recipe == INT8 else 0.3)
    assert quality.variant_perplexity == expected


@pytest.mark.parametrize("recipe", [INT8, INT4], ids=lambda recipe: recipe.format)
def test_adapter_changes_a_variant_as_it_changes_the_base(recipe: Recipe, tmp_path: Path) -> None:
    make_variant(SPARK, tmp_path / "variant", recipe)
    base, variant = (runner_of(folder, dtype="bfloat16") for folder in (SPARK, tmp_path / "variant"))
    assert base.adapters.sites == variant.adapters.sites
    adapter = save_adapter(tmp_path / "adapter", random_matrices(base.adapters.sites, size=0.1))
    changes = []
    for runner in (base, variant):
        plain = next_logits(runner, 0)
        assert runner.adapters.load(adapter).result(20).code == RUNNING
        changes.append(next_logits(runner, runner.adapters.acquire(adapter.digest)) - plain)
    assert changes[0].abs().max() > 1.0, "the adapter changes nothing"
    assert torch.corrcoef(torch.stack(changes))[0, 1] > (0.98 if recipe == INT8 else 0.8)


def next_logits(runner: Runner, adapter_handle: int) -> torch.Tensor:
    """Return the logits after a prompt, with an adapter if the handle is not 0."""
    pusher = Pusher(runner, sequence_id=1 + adapter_handle)
    pusher.table.adapter[0], pusher.table.has_adapters = adapter_handle, adapter_handle > 0
    return pusher.push(list(range(10, 34)))


def test_other_tensors_are_copied_unchanged_and_a_tied_head_is_separated(tmp_path: Path) -> None:
    written = make_variant(SPARK, tmp_path / "variant", INT4)
    base, variant_ = load_file(SPARK / "model.safetensors"), load_file(tmp_path / "variant" / "model.safetensors")
    assert written.kept == tuple(f"model.layers.{index}.mlp.down_proj.weight" for index in range(6))  # 688 inputs
    for name in base.keys() & variant_.keys():
        assert torch.equal(base[name], variant_[name])
    assert {"model.embed_tokens.weight", "model.norm.weight", *written.kept} <= variant_.keys()
    assert {f"lm_head.weight_{part}" for part in ("packed", "scale", "shape")} <= variant_.keys()
    assert json.loads((tmp_path / "variant" / "config.json").read_text())["tie_word_embeddings"] is False
    assert (tmp_path / "variant" / "tokenizer.json").read_bytes() == (SPARK / "tokenizer.json").read_bytes()


def test_copied_float32_matrices_become_bfloat16(tmp_path: Path) -> None:
    save_random("mistral", tmp_path / "base", **WIDTHS)  # float32
    make_variant(tmp_path / "base", tmp_path / "variant", INT4)
    tensors = load_file(tmp_path / "variant" / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert tensors["model.norm.weight"].dtype == torch.float32
    config = json.loads((tmp_path / "variant" / "config.json").read_text())
    assert config.get("torch_dtype", config.get("dtype")) == "bfloat16"
    assert runner_of(tmp_path / "variant", dtype="auto").dtype == torch.bfloat16


def test_rounding_selects_the_nearest_levels() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(4))
    weight[3], weight[5, :32] = 0, 0
    levels, scales = round_by_output(weight)
    assert (levels * scales - weight).abs().max() <= scales.max() / 2 * 1.001
    nibbles, group_scales = round_by_group(weight, 32)
    assert nibbles.max() <= 15
    back = ((nibbles.float() - 8).view(8, 2, 32) * group_scales.float().unsqueeze(-1)).view(8, 64)
    simple = weight.view(8, 2, 32).abs().amax(-1, keepdim=True) / 7  # scales that map the largest weight to ± 7
    simple_error = (
        torch.round(weight.view(8, 2, 32) / simple.clamp(min=1e-9)) * simple - weight.view(8, 2, 32)
    ).square()
    assert (back - weight).square().sum() < 0.9 * simple_error.sum()
    assert (back[3] == 0).all()


def test_invalid_recipe_is_rejected_with_the_option() -> None:
    for number_format, group_size, message in (
        ("int5", None, "--format: 'int5' is not known \\(known: fp8, int8, int4\\)"),
        ("int8", 32, "--group-size is for int4"),
        ("fp8", 32, "--group-size is for int4; fp8 has one scale for each output"),
        ("int4", 48, "--group-size: 48 is not one of 32, 64, 128, 256"),
    ):
        with pytest.raises(RecipeError, match=message):
            make_recipe(number_format, group_size)


def test_group_size_that_does_not_divide_is_rejected_with_the_matrix() -> None:
    with pytest.raises(RecipeError, match=r"--group-size: 64 does not divide the 688 inputs of .*down_proj"):
        plan_variant(SPARK, make_recipe("int4", 64))


def test_model_without_suitable_matrices_or_already_quantized_is_rejected(tmp_path: Path) -> None:
    save_random("llama 2", tmp_path / "narrow")  # 48 channels
    with pytest.raises(RecipeError, match="no matrix fits int4, which needs multiples of 16 outputs, 32 inputs"):
        plan_variant(tmp_path / "narrow", INT4)
    Model(tmp_path / "gptq", GPTQ, in_levels(gptq_tensors))
    with pytest.raises(RecipeError, match=r"q_proj.weight is GPTQ int4 already"):
        plan_variant(tmp_path / "gptq", INT8)


def test_full_disk_is_reported_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1000))
    with pytest.raises(RecipeError, match=r"the variant has \d+ bytes, and 1000 are free"):
        make_variant(SPARK, tmp_path / "variant", INT8)
    assert list((tmp_path / "variant").iterdir()) == []


def test_nan_in_weights_is_rejected(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(SPARK, base)
    tensors = load_file(base / "model.safetensors")
    tensors["model.layers.2.mlp.up_proj.weight"][5, 5] = float("nan")
    save_file(tensors, base / "model.safetensors")
    with pytest.raises(weights.WeightsError, match=r"up_proj\.weight holds NaN"):
        make_variant(base, tmp_path / "variant", INT8)


def test_fp8_variant_loses_little_quality_and_its_report_is_reproducible(tmp_path: Path) -> None:
    written = make_variant(SPARK, tmp_path / "variant", FP8)
    assert written.kept == ()
    text = "What is the capital of France? Tell me a short story about a small dog who finds a red ball. " * 6
    first, second = (
        Pair(SPARK, tmp_path / "variant", is_float8=True).compare(read_tokens(SPARK, text)) for _ in range(2)
    )
    assert first == second
    assert first.num_tokens > 64
    assert 0 < first.kl_divergence < 0.02
    assert first.top1_agreement > 0.9
    assert first.variant_perplexity == pytest.approx(first.base_perplexity, rel=0.03)


def test_fp8_variant_has_the_layout_of_compressed_tensors(tmp_path: Path) -> None:
    save_random("deepseek v2", tmp_path / "base", **(WIDTHS | CHANGES["deepseek v2"]))
    written = make_variant(tmp_path / "base", tmp_path / "variant", FP8)
    tensors = load_file(tmp_path / "variant" / "model.safetensors")
    for name in written.rounded:
        assert tensors[name].dtype == torch.float8_e4m3fn
        assert (tensors[f"{name}_scale"].dtype, tensors[f"{name}_scale"].shape) == (
            torch.float32,
            (len(tensors[name]), 1),
        )
    assert any(name.endswith("kv_a_proj_with_mqa.weight") for name in written.kept), "24 outputs"
    scheme = json.loads((tmp_path / "variant" / "config.json").read_text())["quantization_config"]
    assert (scheme["quant_method"], scheme["format"]) == ("compressed-tensors", "float-quantized")
    assert scheme["ignore"] == sorted(name.removesuffix(".weight") for name in written.kept)


def test_fp8_products_equal_their_definition_with_rounded_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    levels, scales = round_to_float8(torch.randn(32, 48, generator=generator))
    matrix = QuantizedTensor(8, levels.view(torch.uint8), scales, None, 48, is_float=True)
    x, bias = torch.randn(5, 48, generator=generator).bfloat16(), torch.randn(32, generator=generator)
    found, expected = (
        kernels.packed_linear(matrix, bias, torch.bfloat16)(x).float() for kernels in (Float8Products(), Kernels())
    )
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.02)


def test_windows_are_spread_over_the_text_and_a_short_text_is_rejected() -> None:
    windows = windows_of(np.arange(100_000), 256)
    assert (len(windows), windows[0][0], windows[-1][-1]) == (32, 0, 99_999)
    assert [len(window) for window in windows_of(np.arange(100), 256)] == [100]
    with pytest.raises(TextTooShort, match=r"the text has \d tokens; at least 64"):
        read_tokens(SPARK, "Good day!")
