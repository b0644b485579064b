"""Products with packed weights: 4-bit and 8-bit levels, 8-bit floats."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch.nn import functional

from bench.device.kernel_cases.comparison import Case, batch_error, largest_error, on_next, product_types, rotating
from engine.checkpoints.quantized import QuantizedTensor, quantized
from engine.kernels.device_packed import bind_packed, bind_table, device_matrix, linear_of
from engine.kernels.interface import Operator
from engine.kernels.reference import float8_rows

# Bits, group size (0: all inputs), has zeros.
FORMS = {
    "int4 128": (4, 128, True),
    "int4 32": (4, 32, False),
    "int4 of rows": (4, 0, False),
    "int8 of rows": (8, 0, False),
    "int8 16": (8, 16, True),
    "fp8 128": (8, 128, False),
}
TIMED_FORMS = ("int4 128", "int4 32", "int8 of rows", "fp8 128")
SHAPES = {"gate and up": (28_672, 4096), "down": (4096, 14_336)}  # Llama-3.1-8B
NUM_TOKENS = (16, 256, 512)


def check(device: torch.device) -> dict[str, float]:
    """Return the largest relative error of each case."""
    torch.manual_seed(0)
    is_device, errors = device.type == "cuda", {}
    shapes = [(4096, 14_336)] if is_device else [(80, 256), (72, 1152)]
    for name, dtype in product_types(device).items():
        for form in TIMED_FORMS if is_device else FORMS:
            for num_out, num_in in shapes:
                matrix = _levels(form, num_out, num_in, device)
                weight, bias = matrix.dequantize(dtype), torch.randn(num_out, device=device).to(dtype)
                linear = linear_of(device_matrix(matrix), bias)
                for num_tokens in (1, 20, 90):
                    x = torch.randn(num_tokens, num_in + 16, device=device).to(dtype)[:, :num_in]
                    case = f"{form}, {name}, {num_out} × {num_in}, {num_tokens} tokens"
                    found = linear(x)
                    errors[case] = largest_error(found, functional.linear(x.float(), weight.float(), bias.float()))
                    if num_tokens == 20:
                        errors[f"{case}, 17 of them"] = batch_error(linear(x[:17]), found[:17])
                token_ids = torch.tensor([3, 0, num_out - 1, 3], device=device)
                looked_up = bind_table(matrix)[0](token_ids)
                errors[f"{form}, float32, rows of {num_out} × {num_in}"] = largest_error(
                    looked_up, matrix.dequantize(torch.float32)[token_ids]
                )
    return errors | (_check_float8(device, shapes) if is_device else {})


def _check_float8(device: torch.device, shapes: list[tuple[int, int]]) -> dict[str, float]:
    errors = {}
    for num_out, num_in in shapes:
        matrix, bias = _floats(num_out, num_in, device), torch.randn(num_out, device=device)
        linear = bind_packed(matrix, bias, torch.bfloat16)
        for num_tokens in (1, 20, 90):
            x = torch.randn(num_tokens, num_in, device=device).to(torch.bfloat16)
            rows = float8_rows(x)
            expected = functional.linear(rows.expand(torch.float32), matrix.dequantize(torch.float32), bias)
            case = f"fp8, bfloat16, {num_out} × {num_in}, {num_tokens} tokens"
            errors[case] = largest_error(linear(rows.as_operand()), expected)
            errors[f"{case}, rounded"] = largest_error(linear(x), expected)
    return errors


def cases(device: torch.device) -> Iterator[Case]:
    """Yield products at the shapes of Llama-3.1-8B for timing."""
    dtype = torch.bfloat16
    for kind, (num_out, num_in) in SHAPES.items():
        for form in (*TIMED_FORMS, "fp8", "bf16"):
            weight_bytes = num_out * num_in * {"int4": 1, "int8": 2, "fp8": 2, "bf16": 4}[form.split()[0]] // 2
            linears = rotating(functools.partial(_linear, form, num_out, num_in, device), weight_bytes)
            for num_tokens in NUM_TOKENS:
                x = torch.randn(num_tokens, num_in, device=device).to(dtype)
                yield (
                    f"{form}, {kind}, {num_tokens} tokens",
                    on_next(functools.partial(_apply, x), linears),
                    weight_bytes + 2 * num_tokens * (num_in + num_out),
                    2 * num_tokens * num_in * num_out,
                )


def _apply(x: torch.Tensor, linear: Operator) -> torch.Tensor:
    return linear(x)


def _linear(form: str, num_out: int, num_in: int, device: torch.device) -> Operator:
    if form == "bf16":
        weight = torch.zeros(num_out, num_in, device=device, dtype=torch.bfloat16)
        return lambda x: functional.linear(x, weight)
    if form == "fp8":
        return bind_packed(_floats(num_out, num_in, device), None, torch.bfloat16)
    return linear_of(device_matrix(_levels(form, num_out, num_in, device)), None)


def _levels(form: str, num_out: int, num_in: int, device: torch.device) -> QuantizedTensor:
    bits, group_size, has_zeros = FORMS[form]
    group_size = group_size or num_in
    if form.startswith("fp8"):
        floats = _floats(num_out, num_in, device)
        return replace(floats, scales=torch.rand(num_out, num_in // group_size, device=device), group_size=group_size)
    levels = torch.randint(0, 1 << bits, (num_out, num_in), dtype=torch.uint8, device=device)
    scales = torch.rand(num_out, num_in // group_size, device=device) / (num_in**0.5 * (1 << (bits - 1)))
    zeros = torch.randint(0, 1 << bits, scales.shape, dtype=torch.uint8, device=device) if has_zeros else None
    return quantized(levels, bits, scales, zeros, group_size, None)


def _floats(num_out: int, num_in: int, device: torch.device) -> QuantizedTensor:
    rows = float8_rows(torch.randn(num_out, num_in, device=device) * num_in**-0.5)
    return QuantizedTensor(8, rows.values.view(torch.uint8), rows.scales, None, num_in, is_float=True)
