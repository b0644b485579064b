"""The compiled kernels of this machine: their location, and their functions with types.

Independent of compilers, see `build.py`. Libraries for other sources or processors have other names and are never
loaded. Without a library everything uses torch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
from ctypes import POINTER, c_float, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path

_HERE = Path(__file__).parent
SOURCES = tuple(sorted(_HERE.glob("*.cpp")))
HEADERS = tuple(sorted(_HERE.glob("*.h")))
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-fopenmp")
CACHE = Path(__file__).parents[3] / ".cache" / "kernels"
_CPU_FIELDS = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU part", "Features")


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


_ROTATE = (c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_int64)
_NORM = (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float)
_GATE = (c_void_p, c_void_p, c_int64, c_int64)
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "has_linear": (c_int, ()),
    "packed_size": (c_int64, (c_int64, c_int64)),
    "pack": (None, (c_void_p, c_int64, c_void_p, c_int64, c_int64)),
    "linear": (None, (c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64)),
    "has_packed": (c_int, ()),
    "panels": (c_int64, (c_int64,)),
    "pack8": (None, (c_void_p, c_void_p, c_void_p, c_int64, c_int64)),
    "pack4": (None, (c_void_p, c_void_p, c_int64, c_int64)),
    "linear8": (None, (*(c_void_p,) * 6, c_int64, c_int64, c_int64)),
    "linear4": (None, (*(c_void_p,) * 6, c_int64, c_int64, c_int64, c_int64)),
    "read_finite": (c_int64, (c_int, c_void_p, c_int64, c_int64, c_int64, c_uint64)),
    "draw_allowed": (None, (*(c_void_p,) * 7, *(c_int64,) * 4, c_uint64, c_float)),
    "accumulate_bf16": (None, (c_void_p, c_void_p, c_float, c_int64)),
    **{f"attend_{kind}": (None, (POINTER(AttentionCall),)) for kind in ("f32", "bf16")},
    **{f"add_low_rank_{kind}": (None, (POINTER(LowRankCall),)) for kind in ("f32", "bf16")},
    **{f"rms_norm_{kind}": (None, _NORM) for kind in ("f32", "bf16")},
    **{f"rotate_{kind}": (None, _ROTATE) for kind in ("f32", "bf16")},
    **{f"gate_silu_{kind}": (None, _GATE) for kind in ("f32", "bf16")},
}


def compiler_flags() -> tuple[str, ...]:
    """Return the compiler flags: all instructions of this CPU, or AVX2 only if torch is limited to AVX2 too.

    `ATEN_CPU_CAPABILITY=avx2` is torch's own variable; with it, an AVX-512 machine computes as an AVX2 machine does.
    """
    is_limited = platform.machine() == "x86_64" and os.environ.get("ATEN_CPU_CAPABILITY") == "avx2"
    return (*_FLAGS, "-march=x86-64-v3" if is_limited else "-march=native")


def library_path(folder: Path = CACHE) -> Path:
    """Return the path of the library for these sources, compiler flags and CPU, whether or not it has been built."""
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in (*SOURCES, *HEADERS)))
    digest.update("\0".join((*compiler_flags(), *_processor())).encode())
    return folder / f"{digest.hexdigest()[:24]}.so"


@functools.cache
def find_library() -> ctypes.CDLL | None:
    """Return the library built for this machine; None if there is none or it cannot be loaded."""
    try:
        return load(library_path())
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


def _processor() -> list[str]:
    """Return the processor properties that determine the available instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    found = {key.strip(): value.strip() for key, value in fields.items()}
    return [platform.machine(), *(found.get(field, "") for field in _CPU_FIELDS)]
