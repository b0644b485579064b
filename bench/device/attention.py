"""Check the paged attention kernel on a device, and compare its speed with the memory bandwidth.

    python -m bench.device.attention [--seconds 0.2]
    python -m bench.device.attention --device cpu --seconds 0.001        (checks the script itself with the reference)

Correctness: outputs in bfloat16 and float32 against the float32 reference, as norm of the difference over norm, on
random inputs, from a pool whose other blocks are NaN. Speed: microseconds of decode and prefill steps of one layer of
an 8B Llama, bytes of keys and values read per second (rotating through more than a cache holds), and their share of a
copy's bandwidth. Prints JSON; exits with status 1 if a result is wrong. Not yet run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np
import torch

from bench.device.facts import Timer, copy_gb_s
from engine.inputs import NO_SAMPLING, StepInputs
from engine.kernels.interface import AttentionShape, AttentionWindow, KvPool
from engine.kernels.paged_attention import PagedAttention, attend_slowly

BLOCK_SIZE = 16
SHAPES = {
    "llama 8B": AttentionShape(32, 8, 128),
    "one rank of two": AttentionShape(16, 4, 128),
    "window": AttentionShape(32, 8, 128, windows=(AttentionWindow(size=100),)),
    "chunk": AttentionShape(40, 8, 128, windows=(AttentionWindow(chunk=96),)),
    "gemma2": AttentionShape(16, 8, 256, softcap=50.0),
    "gpt-oss": AttentionShape(64, 8, 64, windows=(AttentionWindow(size=128),)),
    "latent": AttentionShape(16, 1, 576, value_dim=512, scale=0.1),
    "odd heads": AttentionShape(14, 2, 96),
}
STEPS = {"decode": [(1, 130), (1, 1), (1, 517)], "mixed": [(1, 300), (40, 40), (17, 217), (3, 3)]}  # (tokens, context)
MOST = {torch.float32: 1e-3, torch.bfloat16: 1e-2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=0.2, help="measuring time of each figure")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device here; --device cpu tries the script itself")
    errors = {name: {step: error_of(name, step, device) for step in STEPS} for name in SHAPES}
    is_right = all(
        found[str(dtype)] < most for of_steps in errors.values() for found in of_steps.values()
        for dtype, most in MOST.items()
    )  # fmt: skip
    timer = Timer(device, options.seconds)
    ceiling = copy_gb_s(device, timer, (4 << 30) if device.type == "cuda" else 1 << 20)
    is_small = device.type != "cuda"
    cases = [(1, 1, 64)] if is_small else [(1, 1, 4096), (16, 1, 1024), (200, 1, 1024), (1, 512, 512), (4, 512, 2048)]
    times = {f"{rows} × {tokens} of {context}": timed(rows, tokens, context, device, timer, ceiling)
             for rows, tokens, context in cases}  # fmt: skip
    json.dump({"torch": torch.__version__, "is_right": is_right, "copy_gb_s": ceiling, "errors": errors,
               "layer": times}, sys.stdout, indent=1)  # fmt: skip
    print()
    sys.exit(not is_right)


def step_of(rows: list[tuple[int, int]], device: torch.device, seed: int = 0) -> tuple[StepInputs, int]:
    """Return a step of rows (tokens, context) over blocks in random order, and the number of blocks the pool needs."""
    num_blocks = [-(-context // BLOCK_SIZE) for _, context in rows]
    order = np.random.default_rng(seed).permutation(sum(num_blocks) + 3)
    tables = np.zeros((len(rows), max(num_blocks)), np.int32)
    for row, (count, end) in enumerate(zip(num_blocks, np.cumsum(num_blocks), strict=True)):
        tables[row, :count] = order[end - count : end]
    positions = [np.arange(context - tokens, context) for tokens, context in rows]
    slots = np.concatenate(
        [tables[row, each // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + each % BLOCK_SIZE
         for row, each in enumerate(positions)])  # fmt: skip
    step = StepInputs(
        token_ids=torch.empty(0),
        positions=torch.from_numpy(np.concatenate(positions)),
        slot_mapping=torch.from_numpy(slots).to(device),
        logit_rows=torch.empty(0),
        query_starts=np.cumsum([0, *(tokens for tokens, _ in rows)]).astype(np.int32),
        context_lens=np.array([context for _, context in rows], np.int32),
        block_tables=tables,
        sequence_ids=np.arange(len(rows)),
        num_decode_rows=sum(tokens == 1 for tokens, _ in rows),
        sampling=NO_SAMPLING,
    )
    return step, len(order)


def error_of(name: str, step_name: str, device: torch.device) -> dict[str, float]:
    """Return ‖kernel − reference‖ / ‖reference‖ per type; infinite if a number is not finite."""
    shape, (step, num_blocks) = SHAPES[name], step_of(STEPS[step_name], device)
    generator = torch.Generator().manual_seed(7)
    num_tokens, slots = len(step.slot_mapping), num_blocks * BLOCK_SIZE
    exact = torch.full((1, slots, shape.kv_width), float("nan"))
    for row, context in enumerate(step.context_lens.tolist()):
        for block in step.block_tables[row, : -(-context // BLOCK_SIZE)].tolist():
            written = exact[0, block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
            written.copy_(torch.randn(written.shape, generator=generator))
    qkv = torch.randn(num_tokens, shape.query_width + shape.kv_width, generator=generator)
    sinks = [torch.randn(shape.num_heads, generator=generator).to(device)] if name == "gpt-oss" else []
    errors = {}
    for dtype in MOST:
        rounded = exact.to(dtype), qkv.to(dtype)
        twin = PagedAttention(KvPool(rounded[0].float().to(device), BLOCK_SIZE), shape, sinks, attend_slowly)
        kernel = PagedAttention(KvPool(rounded[0].to(device), BLOCK_SIZE), shape, sinks)
        found = []
        for attention, given in ((twin, rounded[1].float()), (kernel, rounded[1])):
            attention.begin(step)
            found.append(attention.attend(0, given.to(device)).float())
        error = float((found[1] - found[0]).norm() / found[0].norm())
        errors[str(dtype)] = round(error, 7) if np.isfinite(error) else float("inf")
    return errors


def timed(
    num_rows: int, num_tokens: int, context: int, device: torch.device, timer: Timer, ceiling_gb_s: float
) -> dict[str, Any]:
    """Time one layer's attention of equal rows, including writing keys and values."""
    shape = SHAPES["llama 8B"]
    step, num_blocks = step_of([(num_tokens, context)] * num_rows, device)
    layer_bytes = num_blocks * BLOCK_SIZE * shape.kv_width * 2
    num_layers = max(1, min(16, (512 << 20) // layer_bytes)) if device.type == "cuda" else 1
    data = torch.randn(num_layers, num_blocks * BLOCK_SIZE, shape.kv_width, device=device, dtype=torch.bfloat16)
    attention = PagedAttention(KvPool(data, BLOCK_SIZE), shape)
    attention.begin(step)
    qkv = torch.randn(num_rows * num_tokens, shape.query_width + shape.kv_width, device=device, dtype=torch.bfloat16)
    seconds = timer.median_s(lambda i: attention.attend(i % num_layers, qkv))
    read = num_rows * context * shape.kv_width * 2
    return {
        "us": round(seconds * 1e6, 1),
        "kv_gb_s": round(read / seconds / 1e9, 1),
        "of_copy": round(read / seconds / 1e9 / ceiling_gb_s, 3),
    }


if __name__ == "__main__":
    main()
