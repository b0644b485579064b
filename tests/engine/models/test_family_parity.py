"""Logits and tokens of every family equal transformers, through the checkpoint loader and the paged cache.

The models are tiny and chosen to reveal differences: windows and chunks are much shorter than the prompts and not a
multiple of a block, groups of heads are uneven, biases and norms are far from 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

from catalog.base_model import targets_of
from engine.kernels.interface import AttentionWindow
from engine.kernels.reference import Kernels
from engine.layers.config import MlpConfig, MoeConfig, NormConfig
from engine.models.config import LayerConfig, ModelConfig, RopeConfig
from engine.models.decoder import Decoder
from engine.models.registry import ARCHITECTURES, read_config
from engine.runner import Runner
from tests.engine.driver import Driver
from tests.engine.made_checkpoints import KINDS, Pusher, runner_of, save_random, save_random_with_images
from weight_files.safetensors_header import read_header

NUM_PROMPTS, PROMPT_LEN, NUM_GREEDY = 3, 45, 64


class Model:
    """One random checkpoint: the results of transformers, and a runner over the same files."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        model = save_random(kind, folder)
        self.prompts = np.random.default_rng(7).integers(0, 199, (NUM_PROMPTS, PROMPT_LEN)).tolist()
        ids = torch.tensor(self.prompts)
        with torch.no_grad():
            self.logits = model(ids).logits  # [prompts, tokens, V]
            whole = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NUM_GREEDY,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        self.greedy = whole[:, PROMPT_LEN:].tolist()
        self.runner = runner_of(folder)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Model]]:
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield cache(lambda kind: Model(kind, tmp_path_factory.mktemp("model")))
    transformers.logging.set_verbosity(verbosity)


def push(runner: Runner, prompt: list[int], chunk: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Push the prompt in chunks. Yield the number of pushed tokens and the logits [V] after them."""
    pusher = Pusher(runner, seed=chunk, sequence_id=chunk + 1)
    for first in range(0, len(prompt), chunk):
        tokens = prompt[first : first + chunk]
        yield first + len(tokens), pusher.push(tokens)


def test_every_architecture_has_a_parity_test() -> None:
    tested = {f"{family}ForCausalLM" for family, _ in KINDS.values()}
    families = ("Gemma3", "Llama4", "Llava", "Mistral3", "Qwen2VL", "Qwen2_5_VL")
    with_images = {f"{family}ForConditionalGeneration" for family in families}
    assert tested | with_images == set(ARCHITECTURES)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_in_chunks_of_any_size(kind: str, model_of: Callable[[str], Model]) -> None:
    model = model_of(kind)
    for index, chunk in enumerate((PROMPT_LEN, 17, 7, 1)):
        prompt, expected = model.prompts[index % NUM_PROMPTS], model.logits[index % NUM_PROMPTS]
        for num_pushed, logits in push(model.runner, prompt, chunk):
            torch.testing.assert_close(logits, expected[num_pushed - 1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_modules_that_adapters_can_change_equal_those_found_in_the_headers(
    kind: str, model_of: Callable[[str], Model]
) -> None:
    """Uploads are checked against the headers alone, and must be rejected exactly if the runner would reject them."""
    model = model_of(kind)
    headers = [read_header(path) for path in model.folder.glob("*.safetensors")]
    assert model.runner.adapters is not None
    assert targets_of(headers) == model.runner.adapters.sites


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_equal_transformers_with_and_without_a_prefix_from_the_cache(
    kind: str, model_of: Callable[[str], Model]
) -> None:
    model = model_of(kind)
    driver = Driver(model.runner, max_step_tokens=31)
    for is_cached in (False, True):
        sequence_ids = [
            driver.add(prompt, max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True) for prompt in model.prompts
        ]
        driver.run()
        assert [driver.tokens[sequence_id] for sequence_id in sequence_ids] == model.greedy
        assert {driver.num_cached[sequence_id] for sequence_id in sequence_ids} == {
            PROMPT_LEN // 16 * 16 if is_cached else 0
        }


@pytest.mark.parametrize("kind", KINDS)
def test_reference_kernels_give_the_same_logits(kind: str, model_of: Callable[[str], Model]) -> None:
    model = model_of(kind)
    for num_pushed, logits in push(runner_of(model.folder, Kernels()), model.prompts[0], 19):
        torch.testing.assert_close(logits, model.logits[0, num_pushed - 1], atol=1e-4, rtol=0)


# ── sensitivity of the tests above ──


def stored_names(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


def of_layers(change: Callable[[LayerConfig], LayerConfig]) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: config.with_layers(lambda _, layer: change(layer))


def of_attention(**changes: Any) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: config.with_attention(**changes)


def of_positions(**changes: Any) -> Callable[[ModelConfig], ModelConfig]:
    def change(layer: LayerConfig) -> LayerConfig:
        is_rotary = isinstance(layer.positions, RopeConfig)
        return replace(layer, positions=replace(layer.positions, **changes)) if is_rotary else layer

    return of_layers(change)


def of_mixtures(change: Callable[[MoeConfig], MoeConfig]) -> Callable[[ModelConfig], ModelConfig]:
    def change_layer(layer: LayerConfig) -> LayerConfig:
        is_mixture = isinstance(layer.feed_forward, MoeConfig)
        return replace(layer, feed_forward=change(layer.feed_forward)) if is_mixture else layer

    return of_layers(change_layer)


def of_routers(**changes: Any) -> Callable[[ModelConfig], ModelConfig]:
    return of_mixtures(lambda moe: replace(moe, router=replace(moe.router, **changes)))


def of_model(**changes: Any) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: replace(config, **changes)


def with_relu(layer: LayerConfig) -> LayerConfig:
    if not isinstance(layer.feed_forward, MlpConfig):
        return layer
    activation = replace(layer.feed_forward.activation, kind="relu")
    return replace(layer, feed_forward=replace(layer.feed_forward, activation=activation))


SEES_ALL = of_layers(lambda layer: replace(layer, window=AttentionWindow()))
NO_HEAD_NORM = of_layers(lambda layer: replace(layer, qk_norm=None))
NO_NEIGHBOURS = of_positions(is_interleaved=False)
# The differences of each family and their removal, which the parity tests must detect.
FORGOTTEN: dict[str, tuple[str, Callable[[ModelConfig], ModelConfig]]] = {
    "llama: the stretch of positions": ("llama 3 with scaled positions", of_positions(kind="default")),
    "llama: yarn": ("yarn positions", of_positions(kind="default")),
    "mistral: the window": ("mistral", SEES_ALL),
    "mixtral: the window": ("mixtral", SEES_ALL),
    "mixtral: weights that add up to one": ("mixtral", of_routers(is_normalized=False)),
    "qwen3: norms of heads": ("qwen3", NO_HEAD_NORM),
    "qwen2 moe: weights as they are": ("qwen2 moe", of_routers(is_normalized=True)),
    "qwen2 moe: the shared expert's gate": ("qwen2 moe", of_mixtures(lambda moe: replace(moe, is_shared_gated=False))),
    "qwen3 moe: weights that add up to one": ("qwen3 moe", of_routers(is_normalized=False)),
    "qwen3 moe: how many are chosen": ("qwen3 moe", of_routers(num_chosen=1)),
    "gemma2: weights less one": ("gemma2", of_model(norm=NormConfig())),
    "gemma2: windows": ("gemma2", SEES_ALL),
    "gemma2: capped scores": ("gemma2", of_attention(softcap=None)),
    "gemma2: capped logits": ("gemma2", of_model(logit_softcap=None)),
    "gemma2: the scale of scores": ("gemma2", of_attention(scale=None)),
    "gemma2: grown embeddings": ("gemma2", of_model(embedding_multiplier=1.0)),
    "gemma2: the activation": ("gemma2", of_layers(with_relu)),
    "gemma3: norms of heads": ("gemma3", NO_HEAD_NORM),
    "gemma3: windows": ("gemma3", SEES_ALL),
    "gemma3: two kinds of positions": ("gemma3", of_positions(theta=5000.0)),
    "phi3: turning in part": ("phi3", of_positions(rotary_dim=0)),
    "phi3: the window": ("phi3", SEES_ALL),
    "phi3: long factors": ("phi3 with long positions", of_positions(original_max_positions=256)),
    "phi3: the growth of long positions": ("phi3 with long positions", of_positions(attention_factor=1.0)),
    "olmo2: norms of queries and keys": ("olmo2", NO_HEAD_NORM),
    "granite: embeddings": ("granite", of_model(embedding_multiplier=1.0)),
    "granite: residuals": ("granite", of_model(residual_multiplier=1.0)),
    "granite: scores": ("granite", of_attention(scale=None)),
    "granite: logits": ("granite", of_model(logit_multiplier=1.0)),
    "glm4: neighbors": ("glm4", NO_NEIGHBOURS),
    "glm4: turning in part": ("glm4", of_positions(rotary_dim=0)),
    "gpt-oss: sinks": ("gpt-oss", of_attention(has_sinks=False)),
    "gpt-oss: windows": ("gpt-oss", SEES_ALL),
    "gpt-oss: the limit of the gate": (
        "gpt-oss", of_mixtures(lambda moe: replace(moe, activation=replace(moe.activation, limit=9.0)))),
    "gpt-oss: the slope of the gate": (
        "gpt-oss", of_mixtures(lambda moe: replace(moe, activation=replace(moe.activation, slope=1.0)))),
    "gpt-oss: gate and up alternate": (
        "gpt-oss", of_mixtures(lambda moe: replace(moe, names=replace(moe.names, is_interleaved=False)))),
    "smollm3: layers without positions": (
        "smollm3", of_layers(lambda layer: replace(layer, positions=layer.positions or RopeConfig(theta=2e6)))),
    "starcoder2: norms by mean": ("starcoder2", of_model(norm=NormConfig("rms", 1e-5, has_bias=True))),
    "starcoder2: the window": ("starcoder2", SEES_ALL),
    "starcoder2: the activation": ("starcoder2", of_layers(with_relu)),
    "cohere2: side by side": ("cohere2", of_model(is_parallel=False)),
    "cohere2: neighbors": ("cohere2", NO_NEIGHBOURS),
    "cohere2: layers without positions": (
        "cohere2", of_layers(lambda layer: replace(
            layer, positions=layer.positions or RopeConfig(is_interleaved=True)))),
    "cohere2: windows": ("cohere2", SEES_ALL),
    "cohere2: the scale of logits": ("cohere2", of_model(logit_multiplier=1.0)),
    "deepseek v2: groups": ("deepseek v2", of_routers(num_groups=1)),
    "deepseek v2: the scale of weights": ("deepseek v2", of_routers(scale=1.0)),
    "deepseek v2: neighbors": ("deepseek v2", NO_NEIGHBOURS),
    "deepseek v2: the scale of scores": ("deepseek v2 with stretched positions", of_attention(scale=20**-0.5)),
    "deepseek v3: scores": ("deepseek v3", of_routers(score="softmax")),
    "deepseek v3: the correction": ("deepseek v3", of_routers(has_correction=False)),
    "deepseek v3: groups by their best two": ("deepseek v3", of_routers(num_group_leaders=1)),
    "llama4: chunks": ("llama4", SEES_ALL),
    "llama4: norms of heads": ("llama4", NO_HEAD_NORM),
    "llama4: queries that grow": (
        "llama4", of_layers(lambda layer: layer if isinstance(layer.positions, RopeConfig) else replace(
            layer, positions=None))),
    "llama4: weights of what goes in": ("llama4", of_mixtures(lambda moe: replace(moe, is_input_weighted=False))),
    "llama4: scores": ("llama4", of_routers(score="softmax")),
    "llama4: neighbors": ("llama4", NO_NEIGHBOURS),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGOTTEN)
def test_each_difference_of_a_family_changes_the_logits(
    name: str, model_of: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, forget = FORGOTTEN[name]
    model = model_of(kind)
    config = forget(read_config(model.folder))
    left_over = stored_names(model.folder) - Decoder(config, torch.float32, torch.device("meta")).destinations().keys()
    config = replace(config, ignored=tuple(left_over))
    monkeypatch.setattr("engine.runner.read_config", lambda _folder: config)
    worst = 0.0
    for prompt, expected in zip(model.prompts, model.logits, strict=True):
        for num_pushed, logits in push(runner_of(model.folder), prompt, 23):
            worst = max(worst, float((logits - expected[num_pushed - 1]).abs().max()))
    assert worst > 1e-2


# ── other layouts and types ──


@pytest.mark.parametrize("kind", ["mixtral", "qwen2 moe", "qwen3 moe", "deepseek v3"])
def test_experts_in_one_tensor_give_the_same_logits(
    kind: str, model_of: Callable[[str], Model], tmp_path: Path
) -> None:
    save_random(kind, tmp_path, is_original=False)
    model = model_of(kind)
    (_, logits), *_ = push(runner_of(tmp_path), model.prompts[0], PROMPT_LEN)
    torch.testing.assert_close(logits, model.logits[0, -1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["gemma3", "llama4", "mistral"])
def test_text_part_of_a_multimodal_model_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    model = save_random_with_images(kind, tmp_path)
    prompt = list(range(40))
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([prompt])).logits[0]
    for num_pushed, logits in push(runner_of(tmp_path), prompt, 15):
        torch.testing.assert_close(logits, expected[num_pushed - 1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["mixtral", "gpt-oss", "llama4", "deepseek v3"])
def test_sequence_with_nan_does_not_affect_sequences_with_the_same_experts(
    kind: str, model_of: Callable[[str], Model]
) -> None:
    model = model_of(kind)
    driver = Driver(runner_of(model.folder), is_prefix_cache_enabled=False)
    healthy, sick, other = (
        driver.add(prompt, max_tokens=24, temperature=0.0, ignore_eos=True) for prompt in model.prompts
    )
    while not driver.tokens[sick]:
        driver.step()
    table = driver.engine.table
    slot = int(np.flatnonzero(table.sequence_id == sick)[0])
    driver.runner.poison_kv(table.block_table[slot, :3])  # stored keys that the next decode step reads
    driver.run()
    assert driver.finishes == {healthy: "length", sick: "error", other: "length"}
    assert [driver.tokens[healthy], driver.tokens[other]] == [model.greedy[0][:24], model.greedy[2][:24]]


@pytest.mark.parametrize(("max_model_len", "prompt_len"), [(32, 30), (33, 33), (64, 60)])
def test_long_rope_factors_follow_the_configured_context(tmp_path: Path, max_model_len: int, prompt_len: int) -> None:
    """The original context is 32 tokens. transformers chooses by the prompt's length, so each prompt is on the same
    side of that limit as the configured context."""
    model = save_random("phi3 with long positions", tmp_path)
    prompt = list(range(prompt_len))
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1]
    (_, logits), *_ = push(runner_of(tmp_path, max_model_len=max_model_len), prompt, prompt_len)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_context_beyond_the_original_uses_long_rope_factors_for_short_prompts(tmp_path: Path) -> None:
    model = save_random("phi3 with long positions", tmp_path)
    prompt = list(range(30))
    with torch.no_grad():
        short = model(torch.tensor([prompt])).logits[0, -1]
    runner = runner_of(tmp_path, max_model_len=33)
    (_, logits), *_ = push(runner, prompt, 30)
    assert float((logits - short).abs().max()) > 1e-2
    assert runner.layout_tag != runner_of(tmp_path, max_model_len=32).layout_tag


@pytest.mark.parametrize(
    "kind", ["gemma2", "gemma3", "gpt-oss", "olmo2", "cohere2", "starcoder2", "llama4", "deepseek v3", "qwen2 moe"]
)
def test_bfloat16_logits_are_close_to_float32(kind: str, model_of: Callable[[str], Model]) -> None:
    model = model_of(kind)
    runner = runner_of(model.folder, dtype="bfloat16")
    for chunk in (PROMPT_LEN, 7, 1):
        *_, (_, logits) = push(runner, model.prompts[0], chunk)
        assert torch.nn.functional.cosine_similarity(logits, model.logits[0, -1], 0) > 0.98
