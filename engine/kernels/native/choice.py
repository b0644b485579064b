"""Choice between compiled products and torch's, by a short timed trial on this machine.

A compiled product is used unless torch's plain product of the same size is clearly faster over 1, 4 and 16 rows. The
choice is per kind of weight and class of size, not per number of rows: a row's result must not depend on its batch.
Results are stored beside the libraries, by processor, library, torch version and number of threads.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from engine.checkpoints.quantized import QuantizedTensor, quantized
from engine.kernels.cpu_linear import bind_linear, seconds_per_call
from engine.kernels.interface import Operator
from engine.kernels.native.library import CACHE, find_library_path

logger = logging.getLogger(__name__)

ROWS = (1, 4, 16)
_CLASSES = {"small": (512, 512), "large": (2048, 2048)}  # (out, in) of the product that is timed
_LARGE = 1 << 20  # elements of a matrix in the large class
_NUM_ROUNDS = 3  # alternating, so that a busy moment of the machine does not decide
_ROUND_BUDGET_S = 0.004
_MARGIN = 1.15  # torch must be faster by this factor


def size_class(shape: tuple[int, int]) -> str:
    return "large" if shape[0] * shape[1] >= _LARGE else "small"


def choices_path() -> Path:
    """Return the file with the results for this machine, library and number of threads."""
    return CACHE / f"choices-{_machine_digest(find_library_path())}-{torch.get_num_threads()}.json"


def read_choices(path: Path) -> dict[str, dict[str, list[float]]]:
    """Return microseconds per number of rows by kind and class: of "native" and of "torch". Empty if there are none."""
    try:
        found: dict[str, dict[str, list[float]]] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def stored_choices() -> dict[str, bool]:
    """Return the stored results of this machine and library, by kind and class: True for the compiled product.

    If several numbers of threads have been timed, the latest trial is returned.
    """
    library = find_library_path()
    paths = sorted(CACHE.glob(f"choices-{_machine_digest(library)}-*.json"), key=lambda path: path.stat().st_mtime)
    return {name: is_native_better(times) for name, times in read_choices(paths[-1]).items()} if paths else {}


def is_native_better(microseconds: Mapping[str, list[float]]) -> bool:
    """Return True unless torch's product is clearly faster on the geometric mean over the numbers of rows."""
    ratio = 1.0
    for native, plain in zip(microseconds["native"], microseconds["torch"], strict=True):
        ratio *= native / plain
    return ratio ** (1 / len(ROWS)) <= _MARGIN


def choose_native(kind: str, shape: tuple[int, int], bind: Callable[[torch.Tensor], Operator]) -> bool:
    """Return True if the compiled product is used for weights of this kind and size.

    `bind` returns the compiled product with a bfloat16 weight [out, in], in the kind's own form.
    """
    path, name = choices_path(), f"{kind} {size_class(shape)}"
    choices = read_choices(path)
    if name not in choices:
        choices[name] = _time(_CLASSES[size_class(shape)], bind)
        _write(path, choices)
        is_native = is_native_better(choices[name])
        logger.info("product chosen", extra={"weights": name, "product": "native" if is_native else "torch"})
    return is_native_better(choices[name])


def trial_matrix(shape: tuple[int, int], bits: int) -> QuantizedTensor:
    """Return a packed matrix for a trial."""
    levels = torch.full(shape, 1 << (bits - 1), dtype=torch.uint8)
    return quantized(levels, bits, torch.ones(shape[0], shape[1] // 32), None, 32, None)


def _time(shape: tuple[int, int], bind: Callable[[torch.Tensor], Operator]) -> dict[str, list[float]]:
    weight = torch.ones(shape, dtype=torch.bfloat16)
    operators = {"native": bind(weight), "torch": bind_linear(weight, None)}
    microseconds = {name: [float("inf")] * len(ROWS) for name in operators}
    for _ in range(_NUM_ROUNDS):
        for index, num_rows in enumerate(ROWS):
            x = torch.ones(num_rows, shape[1], dtype=torch.bfloat16)
            for name, operator in operators.items():
                found = round(seconds_per_call(operator, x, _ROUND_BUDGET_S) * 1e6, 1)
                microseconds[name][index] = min(microseconds[name][index], found)
    return microseconds


def _write(path: Path, choices: dict[str, dict[str, list[float]]]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(choices, indent=1))
        draft.replace(path)
    except OSError as error:
        logger.warning("results of timed products cannot be stored in %s: %s", path.parent, error)


def _machine_digest(library: Path | None) -> str:
    parts = (_cpu_model(), library.name if library else "", torch.__version__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "CPU part")
    return "\n".join(line for line in lines if line.split(":")[0].strip() in wanted)
