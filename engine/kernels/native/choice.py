"""Choice between compiled kernels and torch's, by a short timed trial on this machine.

A compiled kernel is used unless torch is clearly faster over several amounts of work, such as 1, 4 and 16 rows. The
choice is per kernel, type and class of size, not per number of rows: a row's result must not depend on its batch.
Results are stored beside the libraries, by processor, library, torch version and number of threads. Results from a busy
machine are measured again by later processes.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.kernels.native.stored_choices import Times, choices_path, is_native_better, is_settled, merge, read_choices

logger = logging.getLogger(__name__)

Call = Callable[[], object]
_LARGE = 1 << 20  # elements of a matrix in the large class
_NUM_ROUNDS = 6  # alternating between the candidates, so that a busy moment of the machine does not decide
_TURN_S = 0.0015  # time of a candidate per round, of at least two calls
_MAX_SPREAD = 1.2  # minima of the first and the second half of the rounds differ by more on a busy machine


@dataclass(frozen=True)
class Contest:
    """The same work in the compiled kernel and in torch, which may have several ways to do it."""

    native: Call
    torch: Sequence[Call]


def size_class(shape: Sequence[int]) -> str:
    return "large" if shape[0] * shape[1] >= _LARGE else "small"


class Choices:
    """The choices of this process by number of threads. Each is made at its first use and stays the same."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], bool] = {}

    def is_native(self, name: str, prepare: Callable[[], Sequence[Contest]]) -> bool:
        """Return True if the compiled kernel called `name` is used. `prepare` returns a contest per amount of work."""
        key = (name, torch.get_num_threads())
        if key not in self._made:
            self._made[key] = choose_native(name, prepare)
        return self._made[key]


def choose_native(name: str, prepare: Callable[[], Sequence[Contest]]) -> bool:
    """Return the stored choice for `name`; measure first if no choice from a quiet machine is stored."""
    path = choices_path(torch.get_num_threads())
    stored = read_choices(path)
    times = stored.get(name)
    if times is None or not is_settled(times):
        times = merge(times, _time(prepare()))
        _write(path, name, times)
        kernel = "native" if is_native_better(times) else "torch"
        logger.info("kernel chosen", extra={"kernel": name, "implementation": kernel, "settled": is_settled(times)})
    return is_native_better(times)


def _time(contests: Sequence[Contest]) -> Times:
    """Return the least microseconds of each candidate, and whether they are trustworthy."""
    native: list[list[float]] = [[] for _ in contests]
    plain: list[list[float]] = [[] for _ in contests]
    with torch.inference_mode():
        for call in (call for contest in contests for call in (contest.native, *contest.torch)):
            call()
        for _ in range(_NUM_ROUNDS):
            for index, contest in enumerate(contests):
                native[index].append(_microseconds(contest.native))
                plain[index].append(min(_microseconds(call) for call in contest.torch))
    spread = max(_spread(rounds) for rounds in native + plain)
    return Times(list(map(min, native)), list(map(min, plain)), is_quiet=spread <= _MAX_SPREAD)


def _microseconds(call: Call) -> float:
    best, deadline = float("inf"), time.perf_counter() + _TURN_S
    while True:
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        best = min(best, end - start)
        if end > deadline:
            return round(best * 1e6, 1)


def _spread(rounds: Sequence[float]) -> float:
    half = len(rounds) // 2
    first, second = min(rounds[:half]), min(rounds[half:])
    return max(first, second) / max(min(first, second), 0.1)


def _write(path: Path, name: str, times: Times) -> None:
    """Add a result to the file, which other processes may have changed since it was read."""
    entries = {each: found.to_json() for each, found in (read_choices(path) | {name: times}).items()}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(entries, indent=1))
        draft.replace(path)
    except OSError as error:
        logger.warning("results of timed kernels cannot be stored in %s: %s", path.parent, error)
