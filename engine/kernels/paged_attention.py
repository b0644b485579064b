"""Attention on a device over a block pool: the part that runs on the host, for any backend.

`launch.py` has the operands, `torch_attention.py` the definition in torch, `triton_attention.py` the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.arrays import ceil_div
from engine.kernels.interface import AttentionShape, AttentionStep, KvPool
from engine.kernels.launch import (
    AttentionLayer,
    Backend,
    DecodeParts,
    DevicePlan,
    HeadUpdate,
    Partial,
    chunk_entries,
    chunk_tokens,
    decode_entries,
    split_rule,
)
from engine.kernels.upload import Upload

BACKENDS = ("auto", "triton", "torch")
_NO_UPDATE = HeadUpdate()


class PagedAttention:
    """See `engine.kernels.interface.Attention`. A step may also be a `DevicePlan`: then no host value is read, and a
    CUDA graph can contain everything from `begin` on. Plans need `chunk_tokens` per entry.
    """

    def __init__(
        self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = (), backend: str = "auto"
    ) -> None:
        self._shape, self._device = shape, pool.data.device
        self._backend = backend_for(self._device, backend)
        self._upload, self._rule = Upload(self._device), split_rule(shape)
        self.chunk_tokens = chunk_tokens(shape, pool.data.dtype)
        self._windows, self._window_of = shape.distinct_windows(pool.num_layers)
        self._layers = [
            AttentionLayer(
                shape,
                self._windows[index],
                sinks[number] if sinks else None,
                pool.blocks[:, number],
                pool.scales_of(number),
            )
            for number, index in enumerate(self._window_of)
        ]
        self._plan: DevicePlan
        self._parts: list[DecodeParts]  # one entry for each distinct window
        self._partial: Partial

    def begin(self, step: AttentionStep | DevicePlan) -> None:
        plan = self._plan = step if isinstance(step, DevicePlan) else self._uploaded(step)
        num_entries = len(plan.decode_plan)
        if num_entries == 0:
            return
        self._parts = [self._backend.split(plan.decode_plan, window, self._rule) for window in self._windows]
        size = num_entries * self._rule.max_parts, self._shape.num_heads
        mixed = torch.empty(*size, self._shape.output_head_dim, dtype=torch.float32, device=self._device)
        self._partial = Partial(mixed, torch.empty(size, dtype=torch.float32, device=self._device))

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        return self.attend_updated(layer, qkv, _NO_UPDATE)

    def attend_updated(self, layer: int, qkv: torch.Tensor, update: HeadUpdate) -> torch.Tensor:
        """Like `attend`, for queries and keys that `update` still has to normalize and rotate."""
        plan, constants = self._plan, self._layers[layer]
        queries = self._backend.store(qkv, plan.slot_mapping, update, constants)
        # Each token's output replaces its query, so that the output of padding is its finite query.
        is_latent = self._shape.value_dim is not None
        out = qkv.new_zeros(len(qkv), self._shape.output_width) if is_latent else queries
        if len(plan.chunk_plan):
            self._backend.chunks(queries, out, plan, constants)
        if len(plan.decode_plan):
            parts = self._parts[self._window_of[layer]]
            self._backend.decode(queries, out, plan, parts, self._partial, constants)
        return out

    def _uploaded(self, step: AttentionStep) -> DevicePlan:
        """Return the plan of a step that is on the host, copied in one piece with the blocks that it uses."""
        slots = np.arange(len(step.context_lens), dtype=np.int32)
        num_blocks = ceil_div(int(step.context_lens.max(initial=1)), self._layers[0].kv.shape[3])
        rows = slots, step.query_starts, step.context_lens, step.num_decode_rows
        arrays = chunk_entries(*rows, self.chunk_tokens), decode_entries(*rows), step.block_tables[:, :num_blocks]
        chunk_plan, decode_plan, block_tables = self._upload.move(arrays)
        return DevicePlan(chunk_plan, decode_plan, block_tables, step.slot_mapping)


def backend_for(device: torch.device, name: str = "auto") -> Backend:
    """Return the kernels of that name; auto is triton on a GPU and torch elsewhere. Raises ValueError for others."""
    if name not in BACKENDS:
        raise ValueError(f"attention must be one of {', '.join(BACKENDS)} (got {name!r})")
    if name == "torch" or (name == "auto" and device.type != "cuda"):
        from engine.kernels.torch_attention import BACKEND
    else:
        from engine.kernels.triton_attention import BACKEND  # imported late, because Triton is optional
    return BACKEND
