"""Choice between compiled products and torch's, by a short timed trial on this machine.

A compiled product is used unless torch's plain product of the same size is clearly faster over 1, 4 and 16 rows. The
choice is per kind of weight and class of size, not per number of rows: a row's result must not depend on its batch.
Results are stored beside the libraries, by processor, library, torch version and number of threads.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch

from engine.checkpoints.quantized import QuantizedTensor, quantized
from engine.kernels.cpu_linear import bind_linear, seconds_per_call
from engine.kernels.interface import Operator
from engine.kernels.native.stored_choices import choices_path, is_native_better, read_choices

logger = logging.getLogger(__name__)

ROWS = (1, 4, 16)
_CLASSES = {"small": (512, 512), "large": (2048, 2048)}  # (out, in) of the product that is timed
_LARGE = 1 << 20  # elements of a matrix in the large class
_NUM_ROUNDS = 3  # alternating, so that a busy moment of the machine does not decide
_ROUND_BUDGET_S = 0.004


def size_class(shape: tuple[int, int]) -> str:
    return "large" if shape[0] * shape[1] >= _LARGE else "small"


def choose_native(kind: str, shape: tuple[int, int], bind: Callable[[torch.Tensor], Operator]) -> bool:
    """Return True if the compiled product is used for weights of this kind and size.

    `bind` returns the compiled product with a bfloat16 weight [out, in], in the kind's own form.
    """
    path, name = choices_path(torch.get_num_threads()), f"{kind} {size_class(shape)}"
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
