"""Experts of a mixture on the host: tokens are grouped by expert, and each group runs at once.

A step iterates over the selected experts, never over tokens.

Letters: T tokens, C channels, E experts of this rank, K selected experts per token, I inner channels of an expert.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.kernels.interface import ExpertMatrices, Operator


class GroupedExperts:
    """See `engine.kernels.reference.Kernels.experts`."""

    def __init__(
        self,
        matrices: ExpertMatrices,
        linear: Callable[[torch.Tensor, torch.Tensor | None], Operator],
        activate: Operator,
    ) -> None:
        """`linear` makes the operator of one expert's matrix and bias; the matrices are not used afterwards."""
        self._first, self._last = matrices.first, matrices.first + len(matrices.up)
        self._is_whole, self._num_experts = len(matrices.up) == matrices.num_experts, matrices.num_experts
        self._is_input_weighted, self._activate = matrices.is_input_weighted, activate
        self._operators: list[tuple[Operator, Operator]] = []  # E × up, down
        for index in range(len(matrices.up)):
            up_bias = None if matrices.up_bias is None else matrices.up_bias[index]
            down_bias = None if matrices.down_bias is None else matrices.down_bias[index]
            self._operators.append((linear(matrices.up[index], up_bias), linear(matrices.down[index], down_bias)))

    def mix(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        num_chosen = experts.shape[1]
        flat, order = experts.flatten().sort(stable=True)  # [T K], tokens of an expert adjacent
        chosen, counts, begin = self._chosen(flat)
        if not chosen:
            return x.new_zeros(x.shape, dtype=torch.float32)
        if not self._is_whole:
            order = order[begin : begin + sum(counts)]
        rows = order // num_chosen  # [T K], token index of each
        row_weights = weights.flatten().index_select(0, order).unsqueeze(1)  # float32 [T K, 1]
        grouped = x.index_select(0, rows)  # [T K, C]
        if self._is_input_weighted:
            grouped = (grouped * row_weights).to(x.dtype)
        parts = [self._run(expert, group) for expert, group in zip(chosen, grouped.split(counts), strict=True)]
        outputs = torch.cat(parts).float()  # [T K, C]
        if not self._is_input_weighted:
            outputs = outputs.mul_(row_weights)
        return x.new_zeros(x.shape, dtype=torch.float32).index_add_(0, rows, outputs)

    def _chosen(self, flat: torch.Tensor) -> tuple[list[int], list[int], int]:
        """Return, for sorted experts [T K], the local experts that occur (relative to the first local one), the count
        of each, and the start of their rows."""
        if self._is_whole:
            chosen, counts = torch.unique_consecutive(flat, return_counts=True)
            return chosen.tolist(), counts.tolist(), 0
        every = flat.new_zeros(self._num_experts).scatter_add_(0, flat, torch.ones_like(flat)).tolist()
        found = [(expert - self._first, every[expert]) for expert in range(self._first, self._last) if every[expert]]
        return [expert for expert, _ in found], [count for _, count in found], sum(every[: self._first])

    def _run(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        up, down = self._operators[expert]
        return down(self._activate(up(x)))
