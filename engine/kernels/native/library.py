"""The compiled kernels of this machine: their location, and their functions with types.

Independent of compilers, see `build.py`. There is one library per instruction set, so that a folder of libraries can
move to another processor. Libraries of other sources have other names and are never loaded. Without a library
everything uses torch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
from ctypes import POINTER, c_float, c_int, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
SOURCES = tuple(sorted(_HERE.glob("*.cpp")))
HEADERS = tuple(sorted(_HERE.glob("*.h")))
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-fopenmp")
CACHE = Path(__file__).parents[3] / ".cache" / "kernels"


@dataclass(frozen=True)
class InstructionSet:
    """Instructions that a library may use.

    `features` are their names in /proc/cpuinfo, `flags` select them in the compiler, and `torch_name` is the lowest
    value of `ATEN_CPU_CAPABILITY` that allows them.
    """

    name: str
    features: frozenset[str]
    flags: tuple[str, ...]
    torch_name: str = "default"


def _x86(name: str, torch_name: str, features: str) -> InstructionSet:
    spelled = {"abm": "lzcnt", "bmi1": "bmi"}
    flags = (f"-m{spelled.get(each, each).replace('_', '')}" for each in features.split())
    return InstructionSet(name, frozenset(features.split()), tuple(flags), torch_name)


_AVX2 = "avx2 fma f16c bmi1 bmi2 abm movbe"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"
_BASELINE = InstructionSet("baseline", frozenset(), ())
# The best first.
INSTRUCTION_SETS = {
    "x86_64": (
        _x86("avx512_bf16", "avx512", f"{_AVX512} avx512_bf16"),
        _x86("avx512_vnni", "avx512", _AVX512),
        _x86("avx_vnni", "avx512", f"{_AVX2} avx_vnni"),
        _x86("avx2", "avx2", _AVX2),
        _BASELINE,
    ),
    "aarch64": (InstructionSet("dotprod", frozenset({"asimddp"}), ("-march=armv8.2-a+dotprod",)), _BASELINE),
}.get(platform.machine(), (_BASELINE,))
_TORCH_NAMES = ("default", "avx2", "avx512")


class AttentionCall(ctypes.Structure):
    """The struct of that name in `kernels.cpp`, field for field."""

    _fields_ = [
        *((name, c_void_p) for name in ("qkv", "kv", "out", "slots", "block_tables", "context_lens", "query_starts")),
        ("sinks", c_void_p),
        *((name, c_int64) for name in ("num_rows", "qkv_stride", "table_stride", "block_size")),
        *((name, c_int64) for name in ("num_heads", "num_kv_heads", "head_dim", "value_dim")),
        *((name, c_int64) for name in ("kv_width", "value_offset", "window", "chunk")),
        *((name, c_float) for name in ("scale", "softcap")),
    ]


class LowRankCall(ctypes.Structure):
    """The struct of that name in `adapters.cpp`, field for field."""

    _fields_ = [
        *((name, c_void_p) for name in ("memory", "slots", "tokens", "columns", "x", "y")),
        *((name, c_int64) for name in ("num_tokens", "num_in", "num_parts", "rank", "stride", "x_stride", "y_stride")),
    ]


class GroupedCall(ctypes.Structure):
    """The struct of that name in `grouped.cpp`, field for field."""

    _fields_ = [
        *((name, c_void_p) for name in ("levels", "scales", "offsets", "bias", "x", "out")),
        *((name, c_int64) for name in ("num_tokens", "num_out", "num_in", "bits")),
        *((name, c_int64) for name in ("block", "num_groups", "blocks_per_group")),
        ("unit", c_float),
    ]


_ROTATE = (c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_int64)
_NORM = (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float)
_GATE = (c_void_p, c_void_p, c_int64, c_int64)
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "packed_size": (c_int64, (c_int64, c_int64)),
    **{f"pack_{kind}": (None, (c_void_p, c_int64, c_void_p, c_int64, c_int64)) for kind in ("f32", "bf16")},
    **{f"linear_{kind}": (None, (*(c_void_p,) * 4, *(c_int64,) * 3)) for kind in ("f32", "bf16")},
    "has_packed": (c_int, ()),
    "panels": (c_int64, (c_int64,)),
    "pack8": (None, (c_void_p, c_void_p, c_void_p, c_int64, c_int64)),
    "linear8": (None, (*(c_void_p,) * 6, c_int64, c_int64, c_int64)),
    "grouped_width": (c_int64, ()),
    "grouped_pack": (None, (c_void_p, c_void_p, *(c_int64,) * 5)),
    "grouped_linear": (None, (POINTER(GroupedCall),)),
    "grouped_rows": (None, (POINTER(GroupedCall), c_void_p, c_void_p, c_int64)),
    "read_finite": (c_int64, (c_int, c_void_p, c_int64, c_int64, c_int64, c_uint64)),
    "draw_allowed": (None, (*(c_void_p,) * 7, *(c_int64,) * 4, c_uint64, c_float)),
    "accumulate_bf16": (None, (c_void_p, c_void_p, c_float, c_int64)),
    **{f"attend_{kind}": (None, (POINTER(AttentionCall),)) for kind in ("f32", "bf16")},
    **{f"add_low_rank_{kind}": (None, (POINTER(LowRankCall),)) for kind in ("f32", "bf16")},
    **{f"rms_norm_{kind}": (None, _NORM) for kind in ("f32", "bf16")},
    **{f"rotate_{kind}": (None, _ROTATE) for kind in ("f32", "bf16")},
    **{f"gate_silu_{kind}": (None, _GATE) for kind in ("f32", "bf16")},
}


def compiler_flags(instructions: InstructionSet) -> tuple[str, ...]:
    return (*_FLAGS, *instructions.flags)


def library_path(instructions: InstructionSet, folder: Path = CACHE) -> Path:
    """Return the path of the library of these sources for an instruction set, whether or not it has been built."""
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in (*SOURCES, *HEADERS)))
    digest.update("\0".join(compiler_flags(instructions)).encode())
    return folder / f"{digest.hexdigest()[:24]}-{instructions.name}.so"


def usable_instruction_sets() -> tuple[InstructionSet, ...]:
    """Return the instruction sets that this processor has, the best first.

    `ATEN_CPU_CAPABILITY`, torch's own variable, limits them: with avx2, an AVX-512 machine computes as an AVX2 machine.
    """
    features = _cpu_features()
    limit = os.environ.get("ATEN_CPU_CAPABILITY", "")
    allowed = _TORCH_NAMES[: _TORCH_NAMES.index(limit) + 1] if limit in _TORCH_NAMES else _TORCH_NAMES
    return tuple(each for each in INSTRUCTION_SETS if each.features <= features and each.torch_name in allowed)


def find_library_path() -> Path | None:
    """Return the best library that has been built for this machine, or None if there is none."""
    paths = (library_path(instructions) for instructions in usable_instruction_sets())
    return next((path for path in paths if path.exists()), None)


@functools.cache
def find_library() -> ctypes.CDLL | None:
    """Load the best library for this machine; None if there is none or it cannot be loaded."""
    path = find_library_path()
    try:
        return None if path is None else load(path)
    except OSError:
        return None


def load(path: Path) -> ctypes.CDLL:
    """Return the functions of the library at `path`, named as in `kernels.cpp`. Raises OSError, also if one is
    missing.

    They run in torch's threads, because the library uses the OpenMP runtime that torch loaded.
    """
    import torch  # noqa: F401  # its OpenMP has to be there first

    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, f"hearth_{name}")
        except AttributeError as error:
            raise OSError(f"{path}: no function hearth_{name}") from error
        function.restype, function.argtypes = result, arguments
    return library


def _cpu_features() -> frozenset[str]:
    """Return the processor's instructions by their names in /proc/cpuinfo; empty if the file does not exist."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return frozenset()
    fields = (line.split(":", 1) for line in lines if ":" in line)
    return frozenset(name for key, value in fields if key.strip() in ("flags", "Features") for name in value.split())
