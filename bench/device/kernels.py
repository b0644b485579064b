"""Check every kernel against its reference on the device, then time it. Part `kernels` of `bench.device`.

Each module of `bench/device/kernel_cases/` has `check(device)`, the largest relative error of each case, and
`cases(device)`: name, launch, bytes moved and floating point operations. All modules are checked, at once and each in a
process of its own, before any kernel is timed; a wrong kernel prevents that. Times are medians over replays of a graph
of 20 launches.
"""

from __future__ import annotations

import importlib
import pkgutil
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import bench.device.kernel_cases as families
from bench.device.figures import Sheet, WrongResult
from bench.device.isolated import run_each

MAX_ERRORS = {"float8": 0.2, "8-bit": 0.2}  # relative, by a word in the case's name: a last bit is 6 %
MAX_ERROR = 0.02  # largest allowed relative error of bfloat16 and more precise types
_LAUNCHES = 20
_REPLAYS = 15
_LONG_REPLAY_MS = 20.0  # duration of a replay above which fewer replays suffice
_CHECK_LIMIT_S = 100.0
_TIME_LIMIT_S = {"cuda": 60.0, "cpu": 5.0}  # time limit for all cases of a module
_CUDA = torch.device("cuda")
_ALIKE = {"comparison"}  # modules without kernels


def names() -> list[str]:
    """Return the modules of kernel cases."""
    return sorted(each.name for each in pkgutil.iter_modules(families.__path__) if each.name not in _ALIKE)


def rows() -> list[str]:
    return [f"{what} {name}" for what in ("check", "times") for name in names()]


def run(sheet: Sheet, device: torch.device, *, keeps_going: bool) -> None:
    """Fill a sheet. Raises WrongResult, before anything is timed unless `keeps_going`."""
    end = time.monotonic() + sheet.left_s
    items, wrong, largest = [(name, device.type) for name in names()], list[dict[str, Any]](), 0.0
    num_unchecked = 0
    for (name, _), errors, failure in run_each(
        check_family, items, num_processes=len(items), until=end, limit_s=_CHECK_LIMIT_S
    ):
        sheet.add(f"check {name}", {"failure": failure} if failure else errors)
        if "No module named 'triton'" in failure and device.type == "cpu":
            num_unchecked += 1
            continue
        found = {"all cases": failure.strip()} if failure else errors
        bad = {case: error for case, error in found.items() if _is_wrong(case, error)}
        wrong += [{"kernel": name, "shape": case, "error": error} for case, error in bad.items()]
        largest = max([largest, *(error for error in found.values() if isinstance(error, float))])
    unchecked = f", {num_unchecked} need Triton" * bool(num_unchecked)
    sheet.headline(f"{len(items) - num_unchecked} families checked{unchecked}, {len(wrong)} cases wrong")
    sheet.headline(f"largest error {largest:.2g}")
    if wrong and not keeps_going:
        raise WrongResult(wrong)
    limit_s = _TIME_LIMIT_S[device.type]
    for (name, _), value, failure in run_each(time_family, items, num_processes=1, until=end - 1, limit_s=limit_s):
        sheet.add(f"{name}: failure" if failure else f"{name}: {value[0]}", failure or value[1])
    if wrong:
        raise WrongResult(wrong)


def _is_wrong(case: str, error: float | str) -> bool:
    limit = next((limit for word, limit in MAX_ERRORS.items() if word in case), MAX_ERROR)
    return not (isinstance(error, float) and error <= limit)


def check_family(item: tuple[str, str]) -> Iterator[dict[str, float]]:
    name, device = item
    yield _module(name).check(torch.device(device))


def time_family(item: tuple[str, str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield name and figures of each case."""
    name, device = item
    for case, launch, num_bytes, operations in _module(name).cases(torch.device(device)):
        us = time_us(launch, torch.device(device))
        figures = {"us": us, "gb_s": num_bytes / us / 1e3, "tflop_s": operations / us / 1e6}
        yield case, {unit: round(value, 2) for unit, value in figures.items()}


def time_us(launch: Callable[[], object], device: torch.device = _CUDA) -> float:
    """Return the median microseconds of one launch: on a GPU within graphs, elsewhere by the host's clock."""
    if device.type != "cuda":
        samples = []
        for _ in range(3):
            started = time.perf_counter()
            launch()
            samples.append((time.perf_counter() - started) * 1e6)
        return statistics.median(samples)
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_LAUNCHES):
            launch()
    replays_ms = [replay_ms(graph)]
    num_replays = 5 if replays_ms[0] > _LONG_REPLAY_MS else _REPLAYS
    replays_ms = [replay_ms(graph) for _ in range(num_replays)]
    return statistics.median(replays_ms) * 1000 / _LAUNCHES


def replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    """Return the device's milliseconds for a replay."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    graph.replay()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


def _module(name: str) -> Any:
    return importlib.import_module(f"{families.__name__}.{name}")
