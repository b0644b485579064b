"""Measure what a GPU can do at the shapes that matter here: the ceilings for every kernel.

    python -m bench.device.facts --out bench/device/facts_h200.json [--seconds 0.3]
    python -m bench.device.facts --device cpu --seconds 0.01        (checks the script itself on small shapes)

Copy bandwidth; matrix products at a step's row counts for the five weight shapes of an 8B Llama in bfloat16 and fp8;
upload bandwidth from pinned and pageable memory; the cost of a context, an import and a graph of 330 nodes; and the
signature of torch's variable-length attention. Device time is measured with events: medians over many repeats on
random data and rotating inputs that no cache holds. Leaves the card's settings unchanged.
"""

from __future__ import annotations

import argparse
import inspect
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROWS = (1, 64, 200, 256, 384, 448, 512, 768, 1024)
LLAMA_8B = {  # (out, in) of the weights that one step reads
    "qkv": (6144, 4096),
    "out": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
TINY = {"qkv": (384, 256), "head": (1024, 256)}  # for checking the script without a GPU
GRAPH_NODES = 330


class Timer:
    """Median seconds of a call: by device events on CUDA, by the host's clock elsewhere."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._is_cuda = device.type == "cuda"
        self._seconds = seconds

    def median_s(self, call: Callable[[int], object]) -> float:
        """Return the median seconds. `call(i)` gets the number of the repetition, to rotate its inputs."""
        for i in range(3):
            call(i)
        self._wait()
        samples: list[float] = []
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end or len(samples) < 5:
            samples.append(self._once(call, len(samples)))
        return statistics.median(samples)

    def _once(self, call: Callable[[int], object], number: int) -> float:
        if not self._is_cuda:
            start = time.perf_counter()
            call(number)
            return time.perf_counter() - start
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        call(number)
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000

    def _wait(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()


def copy_gb_s(device: torch.device, timer: Timer, size_bytes: int) -> float:
    """Return bytes read plus bytes written per second of a copy within the device."""
    source = torch.randint(0, 255, (size_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return round(2 * size_bytes / timer.median_s(lambda _: target.copy_(source)) / 1e9, 1)


def products(device: torch.device, timer: Timer, shapes: dict[str, tuple[int, int]], kind: str) -> dict[str, Any]:
    """Return microseconds, TFLOP/s, and GB/s of weights per weight shape and row count. `kind` is bf16 or fp8."""
    table: dict[str, Any] = {}
    for name, (num_out, num_in) in shapes.items():
        num_copies = max(1, min(8, (256 << 20) // (num_out * num_in * 2)))  # more than the cache holds
        weights = [_operand(num_out, num_in, device, kind) for _ in range(num_copies)]
        table[name] = {}
        for rows in ROWS:
            if kind == "fp8" and rows % 16:
                continue  # the scaled product requires multiples of 16
            x = _operand(rows, num_in, device, kind)
            seconds = timer.median_s(_product(x, weights, rows, num_out, device, kind))
            weight_bytes = num_out * num_in * (1 if kind == "fp8" else 2)
            table[name][str(rows)] = {
                "us": round(seconds * 1e6, 2),
                "tflop_s": round(2 * rows * num_out * num_in / seconds / 1e12, 1),
                "weight_gb_s": round(weight_bytes / seconds / 1e9, 1),
            }
    return table


def _operand(rows: int, columns: int, device: torch.device, kind: str) -> torch.Tensor:
    values = torch.randn(rows, columns, device=device, dtype=torch.bfloat16) * 0.02
    return values.to(torch.float8_e4m3fn) if kind == "fp8" else values


def _product(
    x: torch.Tensor, weights: list[torch.Tensor], rows: int, num_out: int, device: torch.device, kind: str
) -> Callable[[int], object]:
    if kind == "bf16":
        return lambda i: torch.mm(x, weights[i % len(weights)].t())
    scale_x = torch.ones(rows, 1, device=device)
    scale_w = torch.ones(1, num_out, device=device)
    return lambda i: torch._scaled_mm(
        x, weights[i % len(weights)].t(), scale_a=scale_x, scale_b=scale_w, out_dtype=torch.bfloat16
    )


def upload_gb_s(device: torch.device, timer: Timer, size_bytes: int) -> dict[str, float]:
    """Return upload bandwidth from pinned and from pageable memory."""
    target = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    found = {}
    for kind, is_pinned in (("pinned", device.type == "cuda"), ("pageable", False)):
        source = torch.randint(0, 255, (size_bytes,), dtype=torch.uint8)
        source = source.pin_memory() if is_pinned else source
        found[kind] = round(
            size_bytes / timer.median_s(lambda _, s=source: target.copy_(s, non_blocking=True)) / 1e9, 2
        )
    return found


def graph_us(device: torch.device, timer: Timer) -> dict[str, float]:
    """Return host microseconds to launch a graph of GRAPH_NODES small kernels, and device microseconds to run it."""
    x = torch.randn(256, 1024, device=device)
    x.mul_(1.0001)  # loads the kernel before capturing
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_NODES):
            x.mul_(1.0001)
    launches = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        launches.append(time.perf_counter() - start)
    run_s = timer.median_s(lambda _: graph.replay())
    return {"launch_us": round(statistics.median(launches) * 1e6, 1), "run_us": round(run_s * 1e6, 1)}


def start_costs_s(device: torch.device) -> dict[str, float]:
    """Return seconds of a fresh interpreter: importing torch, then the first allocation, which creates the device's
    context."""
    script = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); "
        f"torch.empty(1, device={device.type!r}); c = time.perf_counter(); print(b - a, c - b)"
    )
    pairs = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        pairs.append([float(part) for part in done.stdout.split()])
    return {
        "import_torch_s": round(statistics.median(pair[0] for pair in pairs), 3),
        "first_allocation_s": round(statistics.median(pair[1] for pair in pairs), 3),
    }


def varlen_attention() -> str:
    """Return the signature of torch's variable-length attention, or the reason why there is none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        return f"absent: {error}"
    return str(inspect.signature(varlen_attn))


def gather(device: torch.device, seconds: float) -> dict[str, Any]:
    timer, is_cuda = Timer(device, seconds), device.type == "cuda"
    shapes = LLAMA_8B if is_cuda else TINY
    size_bytes = (4 << 30) if is_cuda else (16 << 20)
    facts: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if is_cuda else platform.processor() or "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "copy_gb_s": copy_gb_s(device, timer, size_bytes),
        "products_bf16": products(device, timer, shapes, "bf16"),
        "upload_gb_s": upload_gb_s(device, timer, min(size_bytes, 1 << 30)),
        "varlen_attention": varlen_attention(),
        **start_costs_s(device),
    }
    if is_cuda:
        facts["products_fp8"] = products(device, timer, shapes, "fp8")
        facts["graph_330_nodes"] = graph_us(device, timer)
        facts["memory_gib"] = round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=0.3, help="measuring time of each figure")
    parser.add_argument("--out", type=Path, help="file to write; standard output unless given")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device here; --device cpu tries the script itself")
    text = json.dumps(gather(torch.device(options.device), options.seconds), indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
