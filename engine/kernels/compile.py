"""Compile all Triton kernels for the shapes of public models without a GPU, and report what each needs on an H200.

    python -m engine.kernels.compile             compare with resources_sm90.json; exit status 1 if a kernel got worse
    python -m engine.kernels.compile --write     write resources_sm90.json
    python -m engine.kernels.compile --out DIR   also fill DIR as a TRITON_CACHE_DIR, C launchers included

Needs Triton 3.6, which has a compiler for sm_90 and the tools that read its output; other versions allocate registers
differently. Nothing is launched: tensors are on torch's `meta` device.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from engine.kernels.block_pool import BlockPool
from engine.kernels.device_launches import other_launches
from engine.kernels.interface import (
    FLOAT8,
    AttentionShape,
    AttentionWindow,
    RotaryLookup,
)
from engine.kernels.kernel_cache import write_stamp
from engine.kernels.launch import (
    ITEM_WIDTH,
    AttentionLayer,
    DecodeParts,
    DevicePlan,
    HeadUpdate,
    Partial,
    split_rule,
)

RECORD = Path(__file__).parent / "resources_sm90.json"
TRITON_VERSION = "3.6"
BLOCK_SIZE = 16
VOCAB_SIZE = 128_256
# One multiprocessor of compute capability 9.0.
_REGISTERS, _SHARED_BYTES, _THREADS, _MAX_PROGRAMS = 65_536, 233_472, 2_048, 32
_RESERVED_SHARED_BYTES = 1_024  # per program
_REGISTER_UNIT = 256  # registers are allocated per warp in units of this size
_WARP = 32

SHAPES = {
    "llama-3.1-8b": AttentionShape(32, 8, 128),
    "llama-3.2-1b": AttentionShape(32, 8, 64),
    "llama-3.3-70b, 1 of 4 shards": AttentionShape(16, 2, 128),
    "llama-4-scout, chunks": AttentionShape(40, 8, 128, (AttentionWindow(chunk=8192),)),
    "mistral-7b, window": AttentionShape(32, 8, 128, (AttentionWindow(size=4096),)),
    "qwen2.5-coder-32b": AttentionShape(40, 8, 128),
    "qwen3-8b, head norms": AttentionShape(32, 8, 128),
    "gemma-2b": AttentionShape(8, 1, 256),
    "gemma-2, window and softcap": AttentionShape(16, 8, 256, (AttentionWindow(size=4096),), softcap=50.0),
    "gpt-oss-20b, window and sinks": AttentionShape(64, 8, 64, (AttentionWindow(size=128),)),
    "deepseek-v3, latent": AttentionShape(128, 1, 576, value_dim=512),
}
WITH_SINKS = ("gpt-oss-20b, window and sinks",)
WITH_HEAD_NORMS = ("qwen3-8b, head norms",)


@dataclass(frozen=True)
class Resources:
    """Resources of a compiled kernel. `spills` counts loads and stores of spilled registers, `async_loads` the 16-byte
    asynchronous copies, `tensor_ops` the warp-group products of matrix units."""

    registers: int
    shared_bytes: int
    spills: int
    async_loads: int
    tensor_ops: int
    programs_per_sm: int


def programs_per_sm(registers: int, shared_bytes: int, num_warps: int) -> int:
    """Return how many programs of a kernel one multiprocessor runs at once."""
    per_warp = -(-registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    by_shared = _SHARED_BYTES // (shared_bytes + _RESERVED_SHARED_BYTES)
    return min(_REGISTERS // (per_warp * num_warps), by_shared, _THREADS // (num_warps * _WARP), _MAX_PROGRAMS)


def problems_of(found: dict[str, Resources], recorded: dict[str, Resources]) -> list[str]:
    """Return why the kernels are worse than recorded: one sentence per fault, none if all is well."""
    problems = [
        f"{name}: no record; run `python -m engine.kernels.compile --write`" for name in found.keys() - recorded
    ]
    problems += [f"{name}: recorded, but no longer compiled" for name in recorded.keys() - found]
    for name, now in found.items():
        if now.spills:
            problems.append(f"{name}: {now.spills} spills of registers")
        before = recorded.get(name)
        if before is None:
            continue
        if now.programs_per_sm < before.programs_per_sm:
            problems.append(f"{name}: {now.programs_per_sm} programs per SM, recorded are {before.programs_per_sm}")
        for field in ("async_loads", "tensor_ops"):
            if getattr(before, field) and not getattr(now, field):
                problems.append(f"{name}: {field} is 0, recorded are {getattr(before, field)}")
    return sorted(problems)


def read_record(path: Path = RECORD) -> dict[str, Resources]:
    return {name: Resources(**fields) for name, fields in json.loads(path.read_text())["kernels"].items()}


def compile_all(*, has_launchers: bool = False) -> Iterator[tuple[str, Resources]]:
    """Compile each kernel for each shape and yield its name with its resources. With `has_launchers`, also compile the
    C code that launches it."""
    with _stub_driver() if has_launchers else contextlib.nullcontext():
        for name, launch in launches().items():
            with _compiling() as kernels:
                launch()
            for number, kernel in enumerate({kernel.hash: kernel for kernel in kernels}.values()):
                if has_launchers:
                    _compile_launcher(kernel)
                yield name if number == 0 else f"{name} {number + 1}", _resources_of(kernel)


def launches() -> dict[str, Callable[[], object]]:
    """Return the launches to compile, by name."""
    return _attention_launches() | sampler_launches() | other_launches()


def sampler_launches() -> dict[str, Callable[[], object]]:
    """Return the launches of the draw, and of biases and penalties."""
    found: dict[str, Callable[[], object]] = {"sampler, penalties": _penalties}
    for has_filters in (False, True):
        for has_mask in (False, True):
            kinds = [kind for kind, has in (("filters", has_filters), ("masks", has_mask)) if has]
            name = f"sampler, {' and '.join(kinds) or 'plain'}"
            found[name] = _sampler(torch.float32, has_filters=has_filters, has_mask=has_mask)
        name = f"sampler, {'filters, ' if has_filters else ''}bfloat16"
        found[name] = _sampler(torch.bfloat16, has_filters=has_filters, has_mask=False)
    return found


def _penalties() -> None:
    from engine.kernels.triton_penalties import adjust
    from engine.sampling.history import Biases, Histories

    with torch.device("meta"):
        logits, ints = torch.empty(256, VOCAB_SIZE), functools.partial(torch.empty, dtype=torch.int32)
        biases = Biases(ints(2, 300), torch.empty(300))
        histories = Histories(ints(4096), ints(4, 64), torch.empty(3, 64))
    adjust(logits, [biases], histories)


def _sampler(dtype: torch.dtype, *, has_filters: bool, has_mask: bool) -> Callable[[], object]:
    def launch() -> object:
        from engine.kernels.triton_sampler import sample_columns
        from engine.sampling.packed import NUM_COLUMNS

        with torch.device("meta"):
            logits, columns = torch.empty(256, VOCAB_SIZE, dtype=dtype), torch.empty(NUM_COLUMNS, 256)
            slots, last_tokens = torch.empty(256, dtype=torch.int32), torch.empty(256, dtype=torch.int32)
            masks = torch.empty(256, VOCAB_SIZE // 8, dtype=torch.uint8) if has_mask else None
        filters = {"has_top_k": has_filters, "has_top_p": has_filters}
        return sample_columns(logits, columns, slots, last_tokens, masks=masks, **filters)

    return launch


def _attention_launches() -> dict[str, Callable[[], object]]:
    """Return the launches of attention: chunk rows, parts of decode rows, their sums, the KV write, the split; those
    that read or write KV also for 8-bit floats."""
    found: dict[str, Callable[[], object]] = {}
    for name, shape in SHAPES.items():
        for part in ("chunks", "decode", "join", "store", "split"):
            found[f"attention, {name}, {part}"] = functools.partial(_attention, name, shape, part, torch.bfloat16)
        for part in ("chunks", "decode", "store"):
            found[f"attention, {name}, fp8 KV, {part}"] = functools.partial(_attention, name, shape, part, FLOAT8)
    return found


def _attention(name: str, shape: AttentionShape, part: str, kv_dtype: torch.dtype) -> None:
    from engine.kernels import triton_attention as kernels
    from engine.kernels.triton_parts import join_parts, split
    from engine.kernels.triton_store import store

    rule, num_heads, num_keyed = split_rule(shape), shape.num_heads, shape.num_heads + shape.num_kv_heads
    with torch.device("meta"):
        ints = functools.partial(torch.empty, dtype=torch.int32)
        plan = DevicePlan(ints(64, 4), ints(256, 3), ints(256, 1024), torch.empty(512, dtype=torch.int64))
        parts = DecodeParts(ints(256 * rule.max_parts, ITEM_WIDTH), ints(257))
        sums = Partial(torch.empty(len(parts.items), num_heads, shape.output_head_dim), torch.empty(1, num_heads))
        qkv = torch.empty(512, shape.query_width + shape.kv_width, dtype=torch.bfloat16)
        queries, out = qkv[:, : shape.query_width], qkv.new_empty(512, shape.output_width)
        pool = BlockPool.allocate(shape, 2, 64, BLOCK_SIZE, kv_dtype, torch.device("meta"))
        scales = torch.empty(shape.num_planes, shape.num_kv_heads) if kv_dtype == FLOAT8 else None
        sinks = torch.empty(num_heads) if name in WITH_SINKS else None
        weight = torch.empty(num_keyed, shape.head_dim) if name in WITH_HEAD_NORMS else None
        table = torch.empty(4096, 1, 3, shape.head_dim // 2, dtype=torch.bfloat16)
        lookup = RotaryLookup(table, plan.slot_mapping) if shape.value_dim is None else None
    layer = AttentionLayer(shape, shape.windows[0], sinks, pool.blocks[:, 0], scales)
    if part == "chunks":
        kernels.attend_chunks(queries, out, plan, layer)
    elif part == "decode":
        kernels.attend_parts(queries, out, plan, parts, sums, layer)
    elif part == "join":
        join_parts(out, plan, parts, sums, layer)
    elif part == "store":
        store(qkv, plan.slot_mapping, HeadUpdate(weight, 1e-6, lookup), layer)
    else:
        split(plan.decode_plan, layer.window, rule)


class _NoDevice:
    """A driver of Triton that names the target to compile for."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


@contextlib.contextmanager
def _compiling() -> Iterator[list[Any]]:
    """Collect the kernels of all launches inside, which are compiled and not run."""
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver.set_active(_NoDevice())
    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, **options: Any) -> Any:
        kernels.append(run(self, *args, **options | {"warmup": True}))
        return kernels[-1]

    JITFunction.run = compile_only
    try:
        yield kernels
    finally:
        JITFunction.run = run


@contextlib.contextmanager
def _stub_driver() -> Iterator[None]:
    """Link Triton's C modules with a library that has the name and the functions of the CUDA driver's and does nothing,
    because this machine may have no driver. The modules then load the driver's library on the machine that has it."""
    from triton.backends.nvidia import driver

    code = "".join(path.read_text() for path in Path(driver.__file__).parent.glob("driver.*"))
    functions = sorted(set(re.findall(r"\bcu[A-Z]\w+(?=\()", code)))
    compiler = os.environ.get("CC") or shutil.which("gcc") or "clang"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libcuda.so.1")
        command = [compiler, "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(library), "-x", "c", "-"]
        subprocess.run(command, input="".join(f"void {each}(void) {{}}\n" for each in functions), text=True, check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)  # a loaded library of this name is not searched for again
        os.environ["TRITON_LIBCUDA_PATH"] = folder
        try:
            yield
        finally:
            del os.environ["TRITON_LIBCUDA_PATH"]


def _compile_launcher(kernel: Any) -> None:
    """Fill Triton's cache with the C modules that load and launch a kernel."""
    from triton.backends.nvidia import driver

    driver.CudaUtils()
    driver.CudaLauncher(kernel.src, kernel.metadata)


def _resources_of(kernel: Any) -> Resources:
    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.check_output([tools / "cuobjdump", "-res-usage", file.name], text=True)
        code = subprocess.check_output([tools / "nvdisasm", "-c", file.name], text=True)
    registers = int(re.search(r"REG:(\d+)", usage)[1])  # type: ignore[index]
    return Resources(
        registers=registers,
        shared_bytes=kernel.metadata.shared,
        spills=len(re.findall(r"\b(?:LDL|STL)\b", code)),
        async_loads=len(re.findall(r"LDGSTS\S*\.128", code)),
        tensor_ops=len(re.findall(r"\bHGMMA\b", code)),
        programs_per_sm=programs_per_sm(registers, kernel.metadata.shared, kernel.metadata.num_warps),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the record instead of comparing with it")
    parser.add_argument("--out", type=Path, help="fill this folder as a TRITON_CACHE_DIR")
    arguments = parser.parse_args()
    if arguments.out:
        os.environ["TRITON_CACHE_DIR"] = str(arguments.out.absolute())
    try:
        import triton
    except ImportError:
        sys.stderr.write(f"compile: needs Triton {TRITON_VERSION}: pip install 'triton=={TRITON_VERSION}.*'\n")
        return 2
    if not triton.__version__.startswith(f"{TRITON_VERSION}."):
        sys.stderr.write(f"compile: needs Triton {TRITON_VERSION} (this is {triton.__version__})\n")
        return 2
    found = {}
    for name, resources in compile_all(has_launchers=arguments.out is not None):
        found[name] = resources
        sys.stdout.write(f"{name}: {resources}\n")
    if arguments.out:
        write_stamp(arguments.out)
    if arguments.write:
        record = {"triton": triton.__version__, "kernels": {name: asdict(each) for name, each in found.items()}}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        return 0
    problems = problems_of(found, read_record())
    sys.stdout.write(("\n".join(problems) or f"{len(found)} kernels are as recorded") + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
