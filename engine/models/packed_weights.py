"""Selection of matrices that stay packed as in their checkpoint because the device can multiply with them.

All parts of a fused matrix need a common packed form. Other packed matrices are expanded while loading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from engine.checkpoints.quantized import PackedForm, PackedSlot, common_form
from engine.checkpoints.weights import Checkpoint
from engine.kernels.reference import Kernels
from engine.layers.linear import Linear
from engine.models.decoder import Decoder


def has_packed(model: Decoder, checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype) -> bool:
    """Whether any matrix, or this rank's part of it, would stay packed if the model ran in `dtype`. Raises
    WeightsError."""
    return any(True for _ in _taken(model, checkpoint, kernels, dtype))


def keep_packed(model: Decoder, checkpoint: Checkpoint, kernels: Kernels) -> dict[str, PackedSlot]:
    """Names in the checkpoint, and the slots to load them into, before weights are loaded. Raises WeightsError."""
    slots: dict[str, PackedSlot] = {}
    for linear in _taken(model, checkpoint, kernels, model.dtype):
        slots.update(linear.keep_packed())
    return slots


def memory_bytes(model: Decoder, checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype) -> int:
    """What the weights will take if the model runs in `dtype`: packed ones as they are stored, all others expanded.
    Raises WeightsError."""
    packed = {name for linear in _taken(model, checkpoint, kernels, dtype) for name in linear.names}
    total = 0
    for name, destination in model.destinations(checkpoint.entries).items():
        source = checkpoint.find(name) if name in packed else None
        if source is None:
            total += math.prod(destination.shape) * dtype.itemsize
        else:
            total += sum(part.size_bytes for part in source.parts)
    return total


def _taken(model: Decoder, checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype) -> Iterator[Linear]:
    model.destinations(checkpoint.entries)  # tells its parts how this checkpoint names them
    for linear in model.linears:
        form = _common_form(linear, checkpoint)
        if form is not None and kernels.supports_packed(form, linear.shape, dtype):
            yield linear


def _common_form(linear: Linear, checkpoint: Checkpoint) -> PackedForm | None:
    forms = [checkpoint.packed_form(name) for name in linear.names]
    found = [form for form in forms if form is not None]
    form = common_form(found) if len(found) == len(forms) else None
    return None if form is None else linear.own_form(form)
