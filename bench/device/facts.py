"""Measure the ceilings for every kernel at the shapes of an 8B Llama. Part `facts` of `bench.device`.

Copy bandwidth; upload bandwidth from pinned and pageable memory; matrix products at a step's row counts for the five
weight shapes of an 8B Llama, in bfloat16 and in fp8 with scales per row and per tensor; the cost of a context, an
import and a graph of 330 nodes. On random data and rotating inputs that no cache holds.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from bench.device.figures import Sheet
from bench.device.kernels import replay_ms, time_us

ROWS = (1, 16, 64, 128, 192, 200, 224, 256, 320, 384, 420, 448, 512, 576, 640, 768, 1024)
LLAMA_8B = {  # (out, in) of the weights that one step reads
    "qkv": (6144, 4096),
    "out": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
TINY = {"qkv": (384, 256), "head": (1024, 256)}  # shapes that check the part without a GPU
KINDS = ("bf16", "fp8 per row", "fp8 per tensor")
GRAPH_NODES = 330
_CACHE_BYTES = 256 << 20


def rows() -> list[str]:
    products = [f"{kind} {name}" for kind in KINDS for name in LLAMA_8B]
    return ["copy", "upload", "start", "graph of 330 nodes", *products]


def run(sheet: Sheet, device: torch.device) -> None:
    """Fill a sheet, the most important figures first."""
    is_cuda = device.type == "cuda"
    copy_gb_s = _copy_gb_s(device, (4 << 30) if is_cuda else (16 << 20))
    sheet.add("copy", {"gb_s": copy_gb_s})
    shapes = LLAMA_8B if is_cuda else TINY
    for kind in KINDS if is_cuda else KINDS[:1]:
        for name, shape in shapes.items():
            found = _products(device, shape, kind)
            sheet.add(f"{kind} {name}", found)
            if "512" in found:
                sheet.headline(f"{kind} {name} M=512: {found['512'].get('tflop_s')} TFLOP/s")
    sheet.add("upload", _upload_gb_s(device, (1 << 30) if is_cuda else (16 << 20)))
    if is_cuda:
        sheet.add("graph of 330 nodes", _graph_us(device))
    sheet.add("start", _start_s(device))
    sheet.headline(f"copy {copy_gb_s} GB/s")


def _copy_gb_s(device: torch.device, size_bytes: int) -> float:
    """Return bytes read plus bytes written per second of a copy within the device."""
    source = torch.randint(0, 255, (size_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return round(2 * size_bytes / time_us(lambda: target.copy_(source), device) / 1e3, 1)


def _products(device: torch.device, shape: tuple[int, int], kind: str) -> dict[str, Any]:
    """Return microseconds, TFLOP/s, and GB/s of weights by row count, or why torch refuses the product."""
    num_out, num_in = shape
    num_bytes = num_out * num_in * (2 if kind == "bf16" else 1)
    num_copies = max(2, min(16, _CACHE_BYTES // num_bytes)) if device.type == "cuda" else 1
    weights = itertools.cycle([_operand(num_out, num_in, device, kind) for _ in range(num_copies)])
    table: dict[str, Any] = {}
    for rows in ROWS:
        x = _operand(rows, num_in, device, kind)
        scales = _scales(rows, num_out, device, kind)

        def launch(x: torch.Tensor = x, scales: Any = scales) -> object:
            weight = next(weights).t()
            if scales is None:
                return torch.mm(x, weight)
            return torch._scaled_mm(x, weight, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)

        try:
            us = time_us(launch, device)
        except RuntimeError as error:
            table[str(rows)] = {"refused": str(error).splitlines()[0][:200]}
            continue
        table[str(rows)] = {
            "us": round(us, 2), "tflop_s": round(2 * rows * num_out * num_in / us / 1e6, 1),
            "weight_gb_s": round(num_bytes / us / 1e3, 1),
        }  # fmt: skip
    return table


def _operand(rows: int, columns: int, device: torch.device, kind: str) -> torch.Tensor:
    values = torch.randn(rows, columns, device=device, dtype=torch.bfloat16) * 0.02
    return values if kind == "bf16" else values.to(torch.float8_e4m3fn)


def _scales(rows: int, num_out: int, device: torch.device, kind: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    if kind == "bf16":
        return None
    is_per_row = kind == "fp8 per row"
    shapes = ((rows, 1), (1, num_out)) if is_per_row else ((), ())
    return torch.ones(shapes[0], device=device), torch.ones(shapes[1], device=device)


def _upload_gb_s(device: torch.device, size_bytes: int) -> dict[str, float]:
    """Return upload bandwidth from pinned and from pageable memory."""
    target = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    found = {}
    for kind, is_pinned in (("pinned", device.type == "cuda"), ("pageable", False)):
        source = torch.ones(size_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        samples = []
        for _ in range(4):
            started = time.perf_counter()
            target.copy_(source, non_blocking=True)
            if device.type == "cuda":
                torch.cuda.synchronize()
            samples.append(time.perf_counter() - started)
        found[kind] = round(size_bytes / statistics.median(samples) / 1e9, 2)
    return found


def _graph_us(device: torch.device) -> dict[str, float]:
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
        started = time.perf_counter()
        graph.replay()
        launches.append(time.perf_counter() - started)
    run_us = 1000 * statistics.median(replay_ms(graph) for _ in range(20))
    return {"launch_us": round(statistics.median(launches) * 1e6, 1), "run_us": round(run_us, 1)}


def _start_s(device: torch.device) -> dict[str, float]:
    """Return seconds of a fresh interpreter: importing torch, then the first allocation, which creates the device's
    context."""
    script = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); "
        f"torch.empty(1, device={device.type!r}); c = time.perf_counter(); print(b - a, c - b)"
    )
    pairs = []
    for _ in range(2 if device.type == "cuda" else 1):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        pairs.append([float(part) for part in done.stdout.split()])
    return {
        "import_torch_s": round(min(pair[0] for pair in pairs), 3),
        "first_allocation_s": round(min(pair[1] for pair in pairs), 3),
    }
