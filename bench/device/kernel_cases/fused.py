"""Fused operators between matrix products: residual add + norm, embedding + norm, gated activation, 8-bit rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from bench.device.kernel_cases.comparison import Case, batch_error, largest_error, on_next, rotating
from engine.kernels.interface import FLOAT8, Activation, NormConstants
from engine.kernels.reference import Kernels, float8_rows

CHANNELS, INNER, VOCABULARY = 4096, 14_336, 128_256  # Llama-3.1-8B
NUM_TOKENS = (256, 420)
_ACTIVATIONS = (
    *(Activation(kind) for kind in ("silu", "gelu", "gelu_tanh", "relu")),
    Activation("silu", limit=0.9, slope=1.702),
)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8": FLOAT8}


def check(device: torch.device) -> dict[str, float]:
    """Return the largest relative error of each case."""
    torch.manual_seed(0)
    if device.type != "cuda":
        errors: dict[str, float] = {}
        for width in (40, 64):
            for name in _DTYPES:
                errors |= _check_norms(width, name, device, ("rms", "rms after rms", "layer", "none after layer"))
            errors |= _check_activations(width, torch.float32, device)
        return errors
    # Each combination is compiled: few are checked on a device.
    return {
        **_check_norms(CHANNELS, "bfloat16", device, ("rms", "rms after rms", "layer", "none after layer")),
        **_check_norms(CHANNELS, "float8", device, ("rms",)),
        **_check_norms(5120, "bfloat16", device, ("rms",)),
        **_check_activations(CHANNELS, torch.bfloat16, device),
    }


def _check_norms(width: int, name: str, device: torch.device, kinds: tuple[str, ...]) -> dict[str, float]:
    from engine.kernels.triton_fused import add_norm, embed_norm

    errors, reference, num_tokens, dtype = {}, Kernels(), 37, _DTYPES[name]
    for kind, (norm, before) in _norms(width, dtype, device).items():
        if kind not in kinds:
            continue
        stream = torch.randn(num_tokens, width, device=device)
        x = torch.randn(num_tokens, width + 16, device=device).to(torch.bfloat16)[:, :width]  # strided rows
        stream[2], x[2] = 0, 0
        expected_stream = stream.clone()
        expected = reference.add_norm(0.4, norm, before)(expected_stream, x)
        found = add_norm(stream, x, 0.4, norm, before)
        case = f"add and norm {kind} {name} {width}"
        errors[case] = max(largest_error(found, expected), largest_error(stream, expected_stream))
        if dtype != FLOAT8:  # rows 3 and 4 of the changed stream, both at once and one alone
            both, alone = stream[3:5].clone(), stream[3:4].clone()
            together = add_norm(both, x[3:5], 0.4, norm, before)
            errors[f"{case}, one alone"] = batch_error(add_norm(alone, x[3:4], 0.4, norm, before), together[:1])
    table = torch.randn(50, width, device=device).to(torch.bfloat16)
    token_ids = torch.randint(0, 50, (num_tokens,), device=device)
    norm = NormConstants("rms", dtype, table[0], None, 1e-5)
    wanted, got = reference.embed_norm(table, 3.0, norm)(token_ids), embed_norm(token_ids, table, 3.0, norm)
    errors[f"embedding {name} {width}"] = max(map(largest_error, got, wanted))
    return errors


def _check_activations(width: int, dtype: torch.dtype, device: torch.device) -> dict[str, float]:
    from engine.kernels.triton_fused import activate, round_rows

    errors, name = {}, str(dtype).removeprefix("torch.")
    for activation in _ACTIVATIONS:
        x = torch.randn(37, 2 * width, device=device).to(dtype)
        x[1] = 0
        expected = Kernels().activation(activation)(x.float())
        case = f"{activation.kind}{'' if activation.limit is None else ' with limit'} {width}"
        errors[f"{case} {name}"] = largest_error(activate(x, activation), expected)
        errors[f"{case} float8"] = largest_error(round_rows(x, activation), float8_rows(expected))
    x = torch.randn(37, width, device=device).to(dtype)
    errors[f"8-bit rows {width}"] = largest_error(round_rows(x), float8_rows(x))
    return errors


def _norms(
    width: int, dtype: torch.dtype, device: torch.device
) -> dict[str, tuple[NormConstants, NormConstants | None]]:
    """Return pairs of the norm of the stream and, if any, that of the operand, by kind."""
    weight, bias = torch.rand(2, width, device=device).add_(0.5).unbind(0)
    rms = NormConstants("rms", dtype, weight.to(torch.bfloat16), None, 1e-5)
    layer = NormConstants("layer", dtype, weight, bias, 1e-5)
    return {
        "rms": (rms, None),
        "rms after rms": (rms, NormConstants("rms", torch.float32, weight, None, 1e-6)),
        "layer": (layer, None),
        "none after layer": (NormConstants("none", dtype), replace(layer, dtype=torch.float32)),
    }


def cases(device: torch.device) -> Iterator[Case]:
    """Yield launches at the shapes of Llama-3.1-8B for timing."""
    from engine.kernels.triton_fused import activate, add_norm, embed_norm, round_rows

    dtype = torch.bfloat16
    weight = torch.ones(CHANNELS, device=device, dtype=dtype)
    table = torch.empty(VOCABULARY, CHANNELS, device=device, dtype=dtype)

    def add(norm: NormConstants, operands: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return add_norm(*operands, 1.0, norm)

    for num_tokens in NUM_TOKENS:
        size = num_tokens * CHANNELS

        def streams(size: tuple[int, int] = (num_tokens, CHANNELS)) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros(size, device=device), torch.ones(size, device=device, dtype=dtype)

        def gates(size: tuple[int, int] = (num_tokens, 2 * INNER)) -> torch.Tensor:
            return torch.ones(size, device=device, dtype=dtype)

        operands, inner = rotating(streams, size * 6), rotating(gates, num_tokens * INNER * 4)
        token_ids = rotating(partial(torch.randint, 0, VOCABULARY, (num_tokens,), device=device), size * 2)
        for name, out_type in (("bfloat16", dtype), ("float8", FLOAT8)):
            norm = NormConstants("rms", out_type, weight, None, 1e-5)
            out_bytes = out_type.itemsize
            yield (
                f"add and norm, {name}, {num_tokens} tokens",
                on_next(partial(add, norm), operands),
                size * (10 + out_bytes),
                0,
            )
            yield (
                f"embedding and norm, {name}, {num_tokens} tokens",
                on_next(partial(embed_norm, table=table, multiplier=1.0, norm=norm), token_ids),
                size * (6 + out_bytes),
                0,
            )
        num_gates = num_tokens * INNER
        yield (
            f"gated silu, bfloat16, {num_tokens} tokens",
            on_next(partial(activate, activation=Activation()), inner),
            num_gates * 6,
            0,
        )
        yield (
            f"gated silu, float8, {num_tokens} tokens",
            on_next(partial(round_rows, activation=Activation()), inner),
            num_gates * 5,
            0,
        )
