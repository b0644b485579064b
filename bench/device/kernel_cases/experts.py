"""Products of a mixture's experts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bench.device.kernel_cases.comparison import Case, batch_error, largest_error, product_types
from engine.kernels.device import DeviceKernels
from engine.kernels.device_experts import mix, mix_slowly
from engine.kernels.interface import Activation, ExpertMatrices

# Channels, inner channels, experts, selected experts per token.
SHAPES = {"mixtral-8x7b": (4096, 14_336, 8, 2), "qwen3-30b-a3b": (2048, 768, 128, 8)}
_SMALL_SHAPE = (40, 24, 5, 2)
_NUM_TOKENS = (16, 256, 512)


def check(device: torch.device) -> dict[str, float]:
    """Return the largest relative error of each case."""
    torch.manual_seed(0)
    is_device, errors = device.type == "cuda", {}
    width, inner, num_experts, num_chosen = (512, 256, 16, 4) if is_device else _SMALL_SHAPE
    activate = DeviceKernels().activation(Activation())
    for name, dtype in product_types(device).items():
        for first, count in ((0, num_experts), (1, 2)):
            for has_bias, is_input_weighted in ((False, False), (True, True)):
                matrices = ExpertMatrices(
                    *_matrices(width, inner, count, dtype, device, has_bias=has_bias),
                    Activation(),
                    num_experts,
                    first,
                    is_input_weighted=is_input_weighted,
                )
                for num_tokens in (1, 7, 150 if is_device else 70):
                    x = torch.randn(num_tokens, width, device=device).to(dtype)
                    experts = torch.rand(num_tokens, num_experts, device=device).topk(num_chosen).indices
                    experts[: num_tokens // 2] = experts[0]  # more than one tile of an expert
                    operands = (x, torch.rand(num_tokens, num_chosen, device=device), experts)
                    expected, found = (each(matrices, activate, *operands) for each in (mix_slowly, mix))
                    case = f"experts {name}, {count} from {first}, bias {has_bias}, {num_tokens} tokens"
                    errors[case] = largest_error(found, expected)
                    alone = mix(matrices, activate, *(each[-1:] for each in operands))
                    errors[f"{case}, last one alone"] = batch_error(alone, found[-1:])
    return errors


def cases(device: torch.device) -> Iterator[Case]:
    """Yield launches of whole mixtures without the router for timing."""
    dtype = torch.bfloat16
    activate = DeviceKernels().activation(Activation())
    for name, (width, inner, num_experts, num_chosen) in SHAPES.items():
        matrices = ExpertMatrices(
            *_matrices(width, inner, num_experts, dtype, device, has_bias=False), Activation(), num_experts
        )
        for num_tokens in _NUM_TOKENS:
            x = torch.randn(num_tokens, width, device=device).to(dtype)
            experts = torch.rand(num_tokens, num_experts, device=device).topk(num_chosen).indices
            weights = torch.rand(num_tokens, num_chosen, device=device)
            num_used = min(num_experts, num_tokens * num_chosen)
            yield (
                f"experts, {name}, {num_tokens} tokens",
                partial(mix, matrices, activate, x, weights, experts),
                num_used * 3 * inner * width * 2,
                num_tokens * num_chosen * 3 * inner * width * 2,
            )


def _matrices(
    width: int, inner: int, num_experts: int, dtype: torch.dtype, device: torch.device, *, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, device=device, dtype=dtype) * shape[-1] ** -0.5).contiguous()

    up, down = random(num_experts, 2 * inner, width), random(num_experts, width, inner)
    if not has_bias:
        return up, down, None, None
    return up, down, random(num_experts, 2 * inner), random(num_experts, width)
