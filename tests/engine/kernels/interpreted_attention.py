"""Compare the Triton kernel with its reference for steps of every kind: run with TRITON_INTERPRET=1.

Takes names of shapes and prints the largest difference of each as JSON. Runs in a process of its own, because Triton
reads the variable when it is imported.
"""

from __future__ import annotations

import json
import sys

import torch

from engine.kernels.paged_attention import PagedAttention, attend_slowly
from engine.kernels.triton_attention import attend
from tests.engine.kernels.test_cpu import NUM_LAYERS, SHAPES, Life, pool_of, sinks_of

NUM_STEPS = 5


def largest_difference(name: str) -> float:
    shape, sinks = SHAPES[name], sinks_of(name)
    life, pools = Life(5), (pool_of(shape), pool_of(shape))
    slow, fast = (PagedAttention(pools[i], shape, sinks, launch) for i, launch in enumerate((attend_slowly, attend)))
    largest, generator = 0.0, torch.Generator().manual_seed(0)
    for _ in range(NUM_STEPS):
        step = life.step()
        for layer in range(NUM_LAYERS):
            qkv = torch.randn(len(step.slot_mapping), shape.query_width + shape.kv_width, generator=generator)
            for twin in (slow, fast):
                twin.begin(step)
            difference = (fast.attend(layer, qkv.clone()) - slow.attend(layer, qkv.clone())).abs().max()
            largest = max(largest, float(difference.nan_to_num(nan=float("inf"))))
    return largest


if __name__ == "__main__":
    json.dump({name: largest_difference(name) for name in sys.argv[1:]}, sys.stdout)
