"""Selection of matrices that stay packed as in their checkpoint because the device can multiply with them.

All parts of a fused matrix need a common packed form. Other packed matrices are expanded while loading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from engine.checkpoints.quantized import PackedForm, PackedSlot, common_form
from engine.checkpoints.stored import WeightsError
from engine.checkpoints.weights import Checkpoint
from engine.kernels.reference import Kernels
from engine.layers.embedding import Embedding
from engine.layers.linear import Linear
from engine.models.decoder import Decoder


def has_packed(model: Decoder, checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype) -> bool:
    """Return True if any matrix, or this rank's shard of it, can stay packed in a model of `dtype`.

    Raises WeightsError.
    """
    return any(True for _ in _packable(model, checkpoint, kernels, dtype))


def keep_packed(model: Decoder, checkpoint: Checkpoint, kernels: Kernels) -> dict[str, PackedSlot]:
    """Mark the matrices that stay packed; return their slots by name in the checkpoint. Raises WeightsError."""
    slots: dict[str, PackedSlot] = {}
    for matrix in _packable(model, checkpoint, kernels, model.dtype):
        slots.update(matrix.keep_packed())
    return slots


def memory_bytes(model: Decoder, checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype) -> int:
    """Return the memory of a model's weights in `dtype`: packed matrices as stored, all others expanded.

    Raises WeightsError.
    """
    packed = {name for matrix in _packable(model, checkpoint, kernels, dtype) for name in matrix.names}
    total = 0
    for name, destination in model.destinations(checkpoint).items():
        source = checkpoint.find(name) if name in packed else None
        if source is None:
            total += math.prod(destination.shape) * dtype.itemsize
        else:
            total += sum(part.size_bytes for part in source.parts)
    return total


def _packable(
    model: Decoder, checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype
) -> Iterator[Linear | Embedding]:
    model.destinations(checkpoint)  # sets the names of the matrices for this checkpoint
    for matrix in model.packable:
        form = _common_form(matrix, checkpoint)
        if form is not None and kernels.supports_packed(form, matrix.shape, dtype):
            fault = kernels.float8_fault() if form.is_float else ""
            if fault:
                raise WeightsError(f"{matrix.names[0]}: {fault}")
            yield matrix


def _common_form(matrix: Linear | Embedding, checkpoint: Checkpoint) -> PackedForm | None:
    forms = [checkpoint.packed_form(name) for name in matrix.names]
    found = [form for form in forms if form is not None]
    form = common_form(found) if found and len(found) == len(forms) else None
    return None if form is None else matrix.own_form(form)
