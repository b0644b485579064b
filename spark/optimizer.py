"""The optimizer: Muon for the matrices of the layers, AdamW for embeddings and norms.

Muon (momentum whose update is made orthogonal by Newton-Schulz steps) learns these forms from about half the tokens
AdamW needs. Knows no schedule: the trainer sets `lr` before each step.
"""

import torch
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@torch.no_grad()
def orthogonalize(gradients: Tensor, num_steps: int = 5) -> Tensor:
    """The nearest orthogonal matrices, roughly, of `gradients` [N, rows, columns]."""
    a, b, c = _NEWTON_SCHULZ
    x = gradients.bfloat16()
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(num_steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if is_tall else x).float()


class Muon(torch.optim.Optimizer):
    """Groups are matrices of one shape, so that each step of one group is a few batched products."""

    def __init__(
        self, matrices: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in matrices:
            by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
        super().__init__(
            [{"params": group} for group in by_shape.values()],
            {"lr": lr, "momentum": momentum, "weight_decay": weight_decay},
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            parameters = group["params"]
            gradients = torch.stack([parameter.grad for parameter in parameters])  # N rows columns
            state = self.state[parameters[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(gradients)
            state["momentum"].lerp_(gradients, 1 - group["momentum"])
            update = orthogonalize(gradients.lerp(state["momentum"], group["momentum"]))
            rate = group["lr"] * 0.2 * max(gradients.shape[-2:]) ** 0.5
            for parameter, change in zip(parameters, update, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=-rate)
