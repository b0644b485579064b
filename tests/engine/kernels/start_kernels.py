"""Launch every kernel of the steps of Llama 3.1 8B without running it, and print as JSON which kernels were not in the
TRITON_CACHE_DIR. Run as a script: needs Triton 3.6, which compiles for sm_90."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.device.random_model import _CONFIG, SHAPES
from engine.device_steps import DeviceSteps, StepLimits, _Variant
from engine.kernels import compile as compiler
from engine.kernels import device as device_kernels
from engine.kernels import paged_attention
from engine.kernels.device import DeviceKernels
from engine.kernels.triton_attention import BACKEND
from engine.kernels.triton_sampler import sample_columns
from engine.models.decoder import Decoder
from engine.models.registry import read_config
from engine.step_buckets import Bucket

META = torch.device("meta")
ROWS = (1, 2, 4, 8, 16, 64, 96, 256)
TOKENS = (64, 192, 512)


class NoDevice:
    """See `engine.devices.device.Device`. Captures run their work once."""

    torch_device = META

    def event(self) -> None:
        return None

    def pinned(self, num_ints: int) -> torch.Tensor:
        return torch.zeros(num_ints, dtype=torch.int32)

    def capture(self, run: Any) -> tuple[None, Any]:
        return None, run()


def main() -> None:
    import triton

    missing: list[str] = []

    def note(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            missing.append(f"{src.name}: {src.signature} {src.constants} {src.attrs}")

    triton.knobs.compilation.listener = note
    device_kernels.has_triton = lambda _device: True
    paged_attention.backend_for = lambda _device, _name: BACKEND
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_CONFIG | SHAPES["8B"] | {"num_hidden_layers": 2}))
        config = read_config(Path(folder))
    with torch.inference_mode(), compiler._compiling() as kernels:
        run_steps(config)
    found = {"num_kernels": len({kernel.hash for kernel in kernels}), "missing": missing}
    sys.stdout.write(json.dumps(found) + "\n")


def run_steps(config: Any) -> None:
    """Run steps of many buckets with every kind of sampling that graphs have."""
    kernels = DeviceKernels()
    model = Decoder(config, torch.bfloat16, META)
    model.bind(kernels)
    model.make_position_tables(kernels, 4096)
    pool = kernels.allocate_pool(model.attention_shape, 2, 64, compiler.BLOCK_SIZE, torch.bfloat16, META)
    attention = model.attention(kernels, pool)

    def forward(step: Any, _inputs: Any) -> torch.Tensor:
        return model.forward(step, attention, keeps_dtype=True)

    limits = StepLimits(512, 256, 256, attention.chunk_tokens)
    steps = DeviceSteps(NoDevice(), forward, sample_columns, None, limits, has_graphs=True)
    steps.capture_first()
    shapes = [Bucket(rows, rows, rows, 0) for rows in ROWS] + [Bucket(tokens, 2, 1, 1) for tokens in TOKENS]
    for bucket in filter(None, map(steps._buckets.find, shapes)):
        for has_top_k, has_top_p in ((False, False), (True, False), (False, True)):
            steps._run(_Variant(bucket, True, has_top_k, has_top_p))


if __name__ == "__main__":
    main()
