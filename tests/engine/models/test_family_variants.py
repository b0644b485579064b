"""Logits and tokens of each family with optional config fields switched on, off or left out equal transformers.

Prompts are longer than windows, chunks, blocks and the original context. They have several lengths in one batch, so
prefills are split while others decode, and are repeated with the prefix cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.engine.driver import Driver
from tests.engine.made_checkpoints import Pusher, runner_of, save_random

pytestmark = pytest.mark.full

LENGTHS, NUM_GREEDY = (150, 70, 9), 40
CHUNK, STEP_TOKENS = 37, 33

PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

# Name of the variant -> the kind of checkpoint, and the changed fields.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 3, tied, one key head": ("llama 3 with scaled positions",
                                    {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama, yarn with its own factor": ("llama 2", {"rope_parameters": YARN | {
        "attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0}}),
    "llama, yarn not truncated": ("llama 2", {"rope_parameters": YARN | {"truncate": False}}),
    "mistral, yarn": ("mistral", {"rope_parameters": YARN, "sliding_window": None}),
    "mixtral without window": ("mixtral", {"sliding_window": None}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3, yarn": ("qwen3", {"rope_parameters": YARN}),
    "qwen2 moe, normalized weights": ("qwen2 moe", {"norm_topk_prob": True}),
    "qwen3 moe, one layer dense": ("qwen3 moe", {
        "mlp_only_layers": [0], "decoder_sparse_step": 1, "norm_topk_prob": False}),
    "gemma2 without caps": ("gemma2", {
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "num_hidden_layers": 4}),
    "gemma3, windows by its rule": ("gemma3", {"num_hidden_layers": 7, "layer_types": None}),
    "gemma3, capped logits": ("gemma3", {"final_logit_softcapping": 4.0}),
    "phi3 without window": ("phi3", {"sliding_window": None}),
    "olmo2, tied, yarn": ("olmo2", {
        "tie_word_embeddings": True, "attention_bias": False, "rope_parameters": YARN}),
    "granite, tied, linear": ("granite", {"rope_parameters": LINEAR, "tie_word_embeddings": True}),
    "glm4, tied, no biases": ("glm4", {"attention_bias": False, "tie_word_embeddings": True}),
    "gpt-oss, no biases, windows by its rule": ("gpt-oss", {"attention_bias": False, "num_hidden_layers": 4}),
    "gpt-oss, plain positions": ("gpt-oss", {"rope_parameters": PLAIN}),
    "smollm3, positions by its rule, yarn": ("smollm3", {
        "num_hidden_layers": 5, "no_rope_layer_interval": 4, "rope_parameters": YARN}),
    "starcoder2, no biases, no window": ("starcoder2", {
        "use_bias": False, "tie_word_embeddings": False, "sliding_window": None}),
    "cohere2, windows by its rule": ("cohere2", {"num_hidden_layers": 5, "layer_types": None, "sliding_window": 7}),
    "cohere2, biases": ("cohere2", {"attention_bias": True}),
    "deepseek v2 without groups": ("deepseek v2", {"topk_method": "greedy", "attention_bias": True}),
    "deepseek v2 lite": ("deepseek v2", {"topk_method": "greedy", "q_lora_rank": None, "rope_parameters": YARN | {
        "mscale": 0.707, "mscale_all_dim": 0.707}}),
    "deepseek v3, queries projected directly": ("deepseek v3", {"q_lora_rank": None}),
    "deepseek v3, halves": ("deepseek v3", {"rope_interleave": False}),
    "deepseek v3, one group": ("deepseek v3", {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
    "deepseek v3, biases": ("deepseek v3", {"attention_bias": True}),
    "deepseek v3, all dense": ("deepseek v3", {"first_k_dense_replace": 3}),
    "llama4 without norms of heads": ("llama4", {"use_qk_norm": False}),
    "llama4 without temperature": ("llama4", {"attn_temperature_tuning": False}),
    "llama4, all mixtures, tied": ("llama4", {
        "moe_layers": None, "interleave_moe_layer_step": 1, "num_hidden_layers": 4, "tie_word_embeddings": True}),
    "llama4, mixtures by its rule": ("llama4", {
        "moe_layers": None, "interleave_moe_layer_step": 2, "num_hidden_layers": 5, "no_rope_layer_interval": 4}),
    "llama4, plain positions": ("llama4", {"rope_parameters": PLAIN}),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    transformers.logging.disable_progress_bar()
    kind, changes = VARIANTS[name]
    model = save_random(kind, tmp_path, **changes)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 199, length).tolist() for length in LENGTHS]
    runner = runner_of(tmp_path, num_blocks=96)
    with torch.no_grad():
        expected = model(torch.tensor(prompts[:1])).logits[0]
    for chunk in (LENGTHS[0], CHUNK):
        pusher = Pusher(runner, seed=chunk, sequence_id=chunk)
        for first in range(0, LENGTHS[0], chunk):
            tokens = prompts[0][first : first + chunk]
            logits = pusher.push(tokens)
            torch.testing.assert_close(logits, expected[first + len(tokens) - 1], atol=1e-4, rtol=0)
    greedy = [greedy_of(model, prompt) for prompt in prompts]
    driver = Driver(runner, max_step_tokens=STEP_TOKENS)
    for is_cached in (False, True):
        ids = [driver.add(prompt, max_tokens=NUM_GREEDY, temperature=0.0, ignore_eos=True) for prompt in prompts]
        driver.run()
        assert [driver.tokens[each] for each in ids] == greedy
        assert [driver.num_cached[each] for each in ids] == [length // 16 * 16 * is_cached for length in LENGTHS]


def greedy_of(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    settings: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad():
        whole = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_GREEDY, **settings)
    return whole[0, len(prompt) :].tolist()
