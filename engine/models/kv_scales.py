"""Scales of keys and values that are stored as 8-bit floats: a checkpoint's own, or 1."""

from __future__ import annotations

import torch

from engine.checkpoints.weights import Checkpoint, WeightsError

# Names of the scales in a layer's attention: those of compressed-tensors, then those of ModelOpt and AutoFP8.
_NAMES = (("k_scale", "k_proj.k_scale"), ("v_scale", "v_proj.v_scale"))


def read_kv_scales(checkpoint: Checkpoint, prefix: str, num_planes: int, num_kv_heads: int) -> torch.Tensor:
    """Return the scales of the layer whose attention has names with `prefix`, float32 [planes, KV heads].

    One stored scale is for all heads. Raises WeightsError naming a tensor of another size or one that is not positive.
    """
    scales = torch.ones(num_planes, num_kv_heads)
    for own, names in zip(scales, _NAMES, strict=False):  # a latent has one plane
        for name in names:
            stored = checkpoint.read_reals(f"{prefix}{name}")
            if stored is None:
                continue
            if stored.numel() not in (1, num_kv_heads):
                raise WeightsError(
                    f"{prefix}{name} has shape {list(stored.shape)}, and the KV heads are {num_kv_heads}"
                )
            if not bool((stored > 0).all()):
                raise WeightsError(f"{prefix}{name} must be greater than 0")
            own.copy_(stored.flatten().expand(num_kv_heads))
            break
    return scales
