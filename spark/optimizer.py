"""The optimizers: Muon for the matrices of the layers, AdamW for embeddings and norms.

Muon (momentum orthogonalized by Newton-Schulz iterations) learns this corpus from about half the tokens that AdamW
needs. Several processes share the orthogonalization, each taking every n-th matrix. Knows no schedule: the trainer sets
`lr` before each step.
"""

import torch
from torch import Tensor, distributed, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@torch.no_grad()
def orthogonalize(gradients: Tensor, num_steps: int = 5) -> Tensor:
    """Return approximately the nearest orthogonal matrices of `gradients` [N, rows, columns] in bf16."""
    a, b, c = _NEWTON_SCHULZ
    x = gradients.bfloat16()
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(num_steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Muon. Parameter groups hold matrices of one shape, so a group's step is a few batched products.

    Gradients must be equal in all processes; the updates then are too.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in matrices:
            by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
        super().__init__(
            [{"params": group} for group in by_shape.values()],
            {"lr": lr, "momentum": momentum, "weight_decay": weight_decay},
        )
        self._rank, self._world_size = rank, world_size

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        wanted = [self._momentum(group) for group in self.param_groups]
        updates = torch.zeros(sum(part.numel() for part in wanted), dtype=torch.bfloat16, device=wanted[0].device)
        shaped = [
            flat.view_as(part) for flat, part in zip(updates.split([w.numel() for w in wanted]), wanted, strict=True)
        ]
        for update, part in zip(shaped, wanted, strict=True):
            own = slice(self._rank, None, self._world_size)
            if len(part[own]):
                update[own] = orthogonalize(part[own])
        if self._world_size > 1:
            distributed.all_reduce(updates)  # each matrix is nonzero in exactly one process
        for group, update in zip(self.param_groups, shaped, strict=True):
            rate = group["lr"] * 0.2 * max(update.shape[-2:]) ** 0.5
            for parameter, change in zip(group["params"], update, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=-rate)

    def _momentum(self, group: dict[str, object]) -> Tensor:
        """Update the group's momentum and return its gradients [N, rows, columns] after Nesterov momentum."""
        parameters, momentum = group["params"], group["momentum"]
        assert isinstance(parameters, list)
        assert isinstance(momentum, float)
        gradients = torch.stack([parameter.grad for parameter in parameters])
        state = self.state[parameters[0]]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(gradients)
        state["momentum"].lerp_(gradients, 1 - momentum)
        return gradients.lerp_(state["momentum"], momentum)
