"""Compare a variant with its base model on text, and compare their decoding speed.

Both models run in this process on the same windows of text. Integer variants and their bases run in the type that
serves them (dtype "auto"). An fp8 variant is compared with bfloat16, with inputs rounded as a GPU rounds them, so that
the result is reproducible; its speed is not measured, because CPUs have no such products. Each of the two parts stops
at a time limit, after at least one window or round, so that a slow model gets a report from less text instead of none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.config import EngineConfig
from engine.inputs import NO_SAMPLING, StepInputs
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import FLOAT8, Float8Rows, Operator
from engine.kernels.reference import float8_rows
from engine.loop import Engine
from engine.protocol.sampling import Sampling
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest
from engine.text.tokenizer import Tokenizer

_BLOCK_SIZE = 16
_MAX_WINDOW = 128
_NUM_WINDOWS = 32
_MIN_TOKENS = 64
_KV_BYTES = 128 * 1024 * 1024
_SPEED_IN, _SPEED_OUT, _SPEED_ROUNDS = 8, 8, 3
_PART_TIMEOUT_S = 20.0  # limit for each part: quality and speed
_FLOAT8_TIMEOUT_S = 600.0  # for the quality of fp8 variants, so that all of the text is compared, as far as possible

OnProgress = Callable[[str, int, int, str], None]
"""Reports a step's name, the work done, the total work, and the unit of both: `bytes`, `tokens` or `runs`."""


def _ignore(_step: str, _done: int, _total: int, _unit: str) -> None:
    """Report no progress."""


class TextTooShort(Exception):
    """The text is too short to compare two models."""


@dataclass(frozen=True)
class Quality:
    """Over `num_tokens` predictions: perplexity of both models, agreement of the most likely token, and the mean
    Kullback-Leibler divergence of the variant from the base in nats."""

    num_tokens: int
    base_perplexity: float
    variant_perplexity: float
    top1_agreement: float
    kl_divergence: float


@dataclass(frozen=True)
class Speed:
    """Tokens per second of both models, for one stream and for sixteen."""

    base_one: float
    variant_one: float
    base_sixteen: float
    variant_sixteen: float


class Pair:
    """A model and its variant, both loaded."""

    def __init__(
        self,
        base_dir: Path,
        variant_dir: Path,
        num_threads: int = 1,
        *,
        is_float8: bool = False,
        device: str = "cpu",
        kv_dtype: str = "auto",
    ) -> None:
        """`kv_dtype` is the variant's, see `EngineConfig`."""
        base = EngineConfig(
            model_dir=base_dir,
            dtype="bfloat16" if is_float8 else "auto",
            device=device,
            block_size=_BLOCK_SIZE,
            kv_memory_bytes=_KV_BYTES,
            num_threads=num_threads,
            is_prefix_cache_enabled=False,
        )
        self._configs = [base, replace(base, model_dir=variant_dir, kv_dtype=kv_dtype)]
        self._base = Runner(base)
        self._variant = Runner(self._configs[1], Float8Products() if is_float8 and device == "cpu" else None)
        self._timeout_s = _FLOAT8_TIMEOUT_S if is_float8 else _PART_TIMEOUT_S

    def compare(self, token_ids: NDArray[np.int64], on_progress: OnProgress = _ignore) -> Quality:
        """Compare on tokens from `read_tokens`."""
        totals = np.zeros(4)  # loss of both, agreement, divergence
        num_tokens, end_s = 0, time.monotonic() + self._timeout_s
        windows = windows_of(token_ids, min(_MAX_WINDOW, self._base.max_model_len))
        num_all = sum(len(window) - 1 for window in windows)
        # Random order: if the time ends early, the windows before that are spread over the text.
        for index in np.random.default_rng(0).permutation(len(windows)):
            if num_tokens and time.monotonic() > end_s:
                break
            on_progress("comparing", num_tokens, num_all, "tokens")
            window = windows[index]
            inputs, targets = _inputs(window), torch.from_numpy(window[1:].copy())
            base = self._base.forward(inputs)[:-1].cpu().log_softmax(-1)  # float32 [t, V]
            variant = self._variant.forward(inputs)[:-1].cpu().log_softmax(-1)
            rows = torch.arange(len(targets))
            same = base.argmax(-1) == variant.argmax(-1)
            divergence = (base.exp() * (base - variant)).sum(-1)
            losses = (-base[rows, targets], -variant[rows, targets])
            totals += [float(each.double().sum()) for each in (*losses, same, divergence)]
            num_tokens += len(targets)
        on_progress("comparing", num_tokens, num_tokens, "tokens")
        base_loss, variant_loss, agreement, divergence_mean = (totals / num_tokens).tolist()
        perplexities = (math.exp(min(base_loss, 700)), math.exp(min(variant_loss, 700)))
        return Quality(num_tokens, *perplexities, agreement, divergence_mean)

    def race(self, on_progress: OnProgress = _ignore) -> Speed:
        """Measure both models alternately, and return the best of a few rounds."""
        runners = tuple(zip((self._base, self._variant), self._configs, strict=True))
        best = {1: [0.0, 0.0], 16: [0.0, 0.0]}  # tokens per second of base and variant, by number of streams
        num_runs, num_all, start_s = 0, 4 * _SPEED_ROUNDS, time.monotonic()
        for round_ in range(_SPEED_ROUNDS):
            round_s = (time.monotonic() - start_s) / max(round_, 1)
            if round_ and (round_ + 1) * round_s > _PART_TIMEOUT_S:
                break
            for index, (runner, config) in enumerate(runners):
                for num_streams, speeds in best.items():
                    on_progress("measuring speed", num_runs, num_all, "runs")
                    speed = tokens_per_s(runner, config, num_streams, _SPEED_IN, _SPEED_OUT)
                    speeds[index] = max(speeds[index], speed)
                    num_runs += 1
        on_progress("measuring speed", num_runs, num_runs, "runs")
        return Speed(*best[1], *best[16])


class Float8Products(CpuKernels):
    """Products with 8-bit floats as on a GPU: rows of inputs are rounded, numbers are multiplied exactly."""

    def supports_packed(self, form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
        is_by_output = form.is_float and form.group_size == shape[1]
        return is_by_output or super().supports_packed(form, shape, dtype)

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        if not matrix.is_float:
            return super().packed_linear(matrix, bias, dtype)
        multiply = self.linear(matrix.packed.view(FLOAT8).to(torch.bfloat16), None)  # bfloat16 holds 8-bit floats
        scales = matrix.scales.t()  # [1, out]

        def forward(x: torch.Tensor | Float8Rows) -> torch.Tensor:
            rows = x if isinstance(x, Float8Rows) else float8_rows(x)
            y = multiply(rows.values.to(torch.bfloat16)).float() * rows.scales * scales
            return (y if bias is None else y + bias).to(dtype)

        return forward


def read_tokens(base_dir: Path, text: str) -> NDArray[np.int64]:
    """Tokenize the text with the model's own tokenizer. Raises TextTooShort and TokenizerUnusable."""
    token_ids = np.array(Tokenizer(base_dir).encode(text, parse_special=True), np.int64)
    if len(token_ids) < _MIN_TOKENS:
        raise TextTooShort(f"the text has {len(token_ids)} tokens; at least {_MIN_TOKENS} are needed")
    return token_ids


def windows_of(token_ids: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Return at most `_NUM_WINDOWS` windows of `size` tokens, evenly spread."""
    size = min(size, len(token_ids))
    count = min(_NUM_WINDOWS, len(token_ids) // size)
    starts = np.linspace(0, len(token_ids) - size, count).astype(int)
    return [token_ids[start : start + size] for start in starts.tolist()]


def tokens_per_s(runner: Runner, config: EngineConfig, num_streams: int, num_in: int, num_out: int) -> float:
    """Measure `num_streams` concurrent streams: prefill of `num_in` tokens each, then `num_out` greedy tokens."""
    engine = Engine(runner, config)
    sampling = Sampling(max_tokens=num_out, temperature=0.0, ignore_eos=True, seed=1)
    prompts = np.random.default_rng(0).integers(3, runner.vocab_size, (num_streams, num_in), np.int32)
    for index, prompt in enumerate(prompts):
        engine.add(SequenceRequest(time.monotonic_ns() + index, prompt, sampling, b"speed", 0))
    start = time.perf_counter()
    while engine.has_work:
        engine.step()
    return num_streams * num_out / (time.perf_counter() - start)


def _inputs(window: NDArray[np.int64]) -> StepInputs:
    """Return the inputs of one sequence from its start, with logits at every position."""
    num_tokens = len(window)
    positions = torch.arange(num_tokens)
    return StepInputs(
        token_ids=torch.from_numpy(window.copy()),
        positions=positions,
        slot_mapping=positions,
        logit_rows=positions,
        query_starts=np.array([0, num_tokens], np.int32),
        context_lens=np.array([num_tokens], np.int32),
        block_tables=np.arange(-(-num_tokens // _BLOCK_SIZE), dtype=np.int32).reshape(1, -1),
        sequence_ids=np.array([0], np.int64),
        num_decode_rows=0,
        sampling=NO_SAMPLING,
    )
