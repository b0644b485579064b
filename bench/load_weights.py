"""Measure how fast weights are loaded from the page cache, in GB/s. Prints JSON.

    python -m bench.load_weights [--device cuda]

"copy" reads a file's bytes in pieces with the same number of threads into one block of memory: the machine's maximum.
"copy_there" reads the same bytes to the engine's destinations, which have the same offsets within a cache line as in
the file (other offsets are up to a third slower). "reader" is the engine's load of the same file into fused matrices,
with all checks. All write to memory that has been touched before, and take turns; "fresh" uses untouched memory, whose
pages the system must find and clear. "converted" and the quantized formats count the written bytes. "peak_mb" is the
largest memory of a load besides its destination.

"through_ring" is the load of the same file to a device, through its ring of pinned memory: in all, the readers' part
(per reader thread), and the device's part of copies and checks, which overlap with reading. Without a GPU, a copy
within the host's memory takes the place of the upload.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.checkpoints import weights
from engine.checkpoints.alignment import AlignedAllocation
from engine.checkpoints.stored import PIECE_BYTES
from engine.devices.cuda import CudaDevice
from engine.devices.device import Device
from engine.devices.recorded import RecordedDevice

CHANNELS, INNER = 2048, 8192
PARTS = {"q_proj": CHANNELS, "k_proj": CHANNELS // 4, "v_proj": CHANNELS // 4, "gate_proj": INNER, "up_proj": INNER}
GROUP = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1024, help="size of the bf16 file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="device of through_ring")
    parser.add_argument("--folder", type=Path, help="where to write the files; a temporary folder otherwise")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        found = measure(Path(folder), arguments.mb << 20, arguments.rounds, torch.device(arguments.device))
        print(json.dumps(found, indent=2))


def measure(folder: Path, size_bytes: int, num_rounds: int, torch_device: torch.device) -> dict[str, object]:
    num_layers = max(1, size_bytes // (sum(PARTS.values()) * CHANNELS * 2))
    dense, packed = folder / "dense", folder / "packed"
    write_dense(dense, num_layers)
    write_gptq(packed, max(1, num_layers // 8))
    num_threads = min(8, (os.cpu_count() or 1) + 1)
    path = dense / "model.safetensors"
    room = torch.zeros(path.stat().st_size, dtype=torch.uint8)
    with AlignedAllocation(weights.open_checkpoint(dense).common_alignment):  # the same placement as in a runner
        targets = fused(num_layers, torch.bfloat16, fill=True)
    wide = fused(num_layers, torch.float32, fill=True)
    few = fused(max(1, num_layers // 8), torch.bfloat16, fill=True)
    device: Device = RecordedDevice() if torch_device.type == "cpu" else CudaDevice(torch_device)
    remote = targets if torch_device.type == "cpu" else {name: each.to(torch_device) for name, each in targets.items()}
    ring_rounds: list[dict[str, float]] = []
    jobs: dict[str, tuple[Callable[[], None], int]] = {
        "copy": (lambda: copy(path, room, num_threads), num_bytes(targets)),
        "copy_there": (lambda: copy_there(path, ranges_of(dense, targets), num_threads), num_bytes(targets)),
        "reader": (lambda: load(dense, targets), num_bytes(targets)),
        "copy_fresh": (
            lambda: copy(path, torch.empty(len(room), dtype=torch.uint8), num_threads),
            num_bytes(targets),
        ),
        "reader_fresh": (lambda: load(dense, fused(num_layers, torch.bfloat16, fill=False)), num_bytes(targets)),
        "converted": (lambda: load(dense, wide), num_bytes(wide)),
        "gptq_int4": (lambda: load(packed, few), num_bytes(few)),
        "through_ring": (
            lambda: ring_rounds.append(weights.load(weights.open_checkpoint(dense), remote, device=device)),
            num_bytes(targets),
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(num_rounds + 1):
        for name, (job, _) in jobs.items():
            started = time.perf_counter()
            job()
            if turn:  # the first round warms the page cache
                seconds[name].append(time.perf_counter() - started)
    rates = {name: jobs[name][1] / statistics.median(seconds[name]) / 1e9 for name in jobs}
    return {
        "threads": num_threads,
        "file_mb": path.stat().st_size >> 20,
        "load_average": os.getloadavg()[0],
        "gb_per_s": {name: round(rate, 2) for name, rate in rates.items()},
        "through_ring": {
            "device": torch_device.type,
            "gb_per_s": {
                phase: round(num_bytes(targets) / statistics.median(each[phase] for each in ring_rounds[1:]) / 1e9, 2)
                for phase in ring_rounds[0]
            },
        },
        "reader_to_copy": round(rates["reader"] / rates["copy"], 3),
        "reader_to_copy_there": round(rates["reader"] / rates["copy_there"], 3),
        "reader_to_copy_by_turn": [
            round(copied / read, 2) for copied, read in zip(seconds["copy"], seconds["reader"], strict=True)
        ],
        "fresh_to_fresh": round(rates["reader_fresh"] / rates["copy_fresh"], 3),
        "peak_mb": {"reader": peak_mb(lambda: load(dense, targets)), "gptq_int4": peak_mb(lambda: load(packed, few))},
    }


def write_dense(folder: Path, num_layers: int) -> None:
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(num_layers):
        for part, num_out in PARTS.items():
            weight = torch.randn(num_out, CHANNELS, generator=generator).mul_(0.02)
            tensors[f"{layer}.{part}.weight"] = weight.bfloat16()
    save_file(tensors, folder / "model.safetensors")


def write_gptq(folder: Path, num_layers: int) -> None:
    folder.mkdir()
    tensors = {}
    for layer in range(num_layers):
        for part, num_out in PARTS.items():
            name = f"{layer}.{part}"
            tensors[f"{name}.qweight"] = torch.randint(-(1 << 31), 1 << 31, (CHANNELS // 8, num_out), dtype=torch.int32)
            tensors[f"{name}.qzeros"] = torch.full((CHANNELS // GROUP, num_out // 8), 0x77777777, dtype=torch.int32)
            tensors[f"{name}.scales"] = torch.full((CHANNELS // GROUP, num_out), 0.01, dtype=torch.float16)
            tensors[f"{name}.g_idx"] = (torch.arange(CHANNELS) // GROUP).int()
    save_file(tensors, folder / "model.safetensors")
    said = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    (folder / "config.json").write_text(json.dumps({"quantization_config": said}))


def fused(num_layers: int, dtype: torch.dtype, *, fill: bool) -> dict[str, torch.Tensor]:
    """Return destinations as in a model: the parts of a layer are slices of one matrix per input."""
    found = {}
    for layer in range(num_layers):
        for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            whole = torch.empty(sum(PARTS[part] for part in group), CHANNELS, dtype=dtype)
            if fill:
                whole.fill_(1)
            first = 0
            for part in group:
                found[f"{layer}.{part}.weight"] = whole[first : first + PARTS[part]]
                first += PARTS[part]
    return found


def num_bytes(targets: dict[str, torch.Tensor]) -> int:
    return sum(target.numel() * target.itemsize for target in targets.values())


def load(folder: Path, targets: dict[str, torch.Tensor]) -> None:
    weights.load(weights.open_checkpoint(folder), targets)


def copy(path: Path, room: torch.Tensor, num_threads: int) -> None:
    """Read the file without checks."""
    copy_there(path, [(memoryview(room.numpy().data), 0)], num_threads)


def ranges_of(folder: Path, targets: dict[str, torch.Tensor]) -> list[tuple[memoryview, int]]:
    """Return the destination and file offset of each tensor, in file order."""
    checkpoint = weights.open_checkpoint(folder)
    found = []
    for name, target in targets.items():
        source = checkpoint.find(name)
        assert source is not None
        found.append((memoryview(target.view(-1).view(torch.uint8).numpy().data), source.parts[0].offset))
    return sorted(found, key=lambda pair: pair[1])


def copy_there(path: Path, ranges: list[tuple[memoryview, int]], num_threads: int) -> None:
    """Read each range to its destination without checks."""
    descriptor, lock = os.open(path, os.O_RDONLY), threading.Lock()
    pieces = ((to, offset, at) for to, offset in ranges for at in range(0, len(to), PIECE_BYTES))

    def work() -> None:
        while True:
            with lock:
                piece = next(pieces, None)
            if piece is None:
                return
            to, offset, at = piece
            os.preadv(descriptor, [to[at : at + PIECE_BYTES]], offset + at)

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)


def peak_mb(job: Callable[[], None]) -> int:
    """Return the peak memory beyond what the process had before, in MB."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory_mb("VmRSS")
    job()
    return memory_mb("VmHWM") - before


def memory_mb(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) >> 10


if __name__ == "__main__":
    main()
