"""The parts of `bench.device`: the time that each needs, the rows that it fills, and running one in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.device import isolated
from bench.device.figures import NOT_MEASURED, Sheet, WrongResult


class Part(NamedTuple):
    """A part is not started with less than `least_s` left, and gets `most_s` at most."""

    least_s: float
    most_s: float


PARTS = {
    "facts": Part(25, 75),
    "kernels": Part(40, 160),
    "families": Part(40, 130),
    "offline": Part(60, 480),
    "profile": Part(45, 80),
    "http": Part(60, 300),
    "start": Part(40, 120),
    "fp8": Part(60, 480),
}
SEPARATE = {"kernels", "families"}  # they check results: if one is wrong, no speed is measured after it


class PartOptions(NamedTuple):
    """Options of one part. The folder `scratch` contains the random model, which the parts of a run share."""

    device: str
    path: Path
    scratch: Path
    part_s: float
    seconds: float
    drain_s: float
    budgets: tuple[int, ...]
    repeats: int
    keeps_going: bool


def fill_unmeasured(name: str, path: Path) -> None:
    """Write every row of a part as not measured."""
    sheet = Sheet(path, name, "fake")
    for row in _rows(name):
        sheet.add(row, NOT_MEASURED)
    sheet.headline(NOT_MEASURED)
    sheet.close(NOT_MEASURED)


def run_part(name: str, options: PartOptions) -> int:
    """Run one part and write its file. Return 1 if results are wrong, 3 if the part failed."""
    if name in SEPARATE:
        isolated.prepare()
    sheet = Sheet(options.path, name, options.device, options.part_s)
    try:
        _runner(name)(sheet, options)
    except WrongResult as error:
        sheet.close("wrong", traceback.format_exc(), error.wrong)
        return 1
    except Exception:  # recorded: other parts must run all the same
        sheet.close("failed", traceback.format_exc())
        traceback.print_exc()
        return 3
    sheet.close()
    return 0


def _rows(name: str) -> list[str]:
    if name == "facts":
        from bench.device.facts import rows
    elif name == "kernels":
        from bench.device.kernels import rows
    elif name == "families":
        from bench.device.families import rows
    elif name == "offline":
        from bench.device.offline import rows
    elif name == "profile":
        from bench.device.profiled import rows
    elif name == "http":
        from bench.device.http_load import rows
    elif name == "fp8":
        from bench.device.float8 import rows
    else:
        from bench.device.start import rows
    return rows()


def _runner(name: str) -> Callable[[Sheet, PartOptions], None]:
    return {
        "facts": _facts, "kernels": _kernels, "families": _families, "offline": _offline, "profile": _profile,
        "http": _http, "start": _start, "fp8": _fp8,
    }[name]  # fmt: skip


def _facts(sheet: Sheet, options: PartOptions) -> None:
    from bench.device import facts

    facts.run(sheet, _device(options))


def _kernels(sheet: Sheet, options: PartOptions) -> None:
    from bench.device import kernels

    kernels.run(sheet, _device(options), keeps_going=options.keeps_going)


def _families(sheet: Sheet, options: PartOptions) -> None:
    from bench.device import families

    families.run(sheet, _device(options), is_tiny=_is_tiny(options))


def _offline(sheet: Sheet, options: PartOptions) -> None:
    from bench.device import offline

    tiny = _is_tiny(options)
    measured = offline.Options(options.seconds, options.drain_s, options.budgets, options.repeats)
    offline.run(sheet, _device(options), _model(options), measured, is_tiny=tiny)


def _profile(sheet: Sheet, options: PartOptions) -> None:
    from bench.device import profiled

    profiled.run(sheet, _device(options), _model(options), is_tiny=_is_tiny(options))


def _http(sheet: Sheet, options: PartOptions) -> None:
    from bench.device import http_load

    http_load.run(sheet, _device(options), _model(options), options.seconds, is_tiny=_is_tiny(options))


def _start(sheet: Sheet, options: PartOptions) -> None:
    from bench.device import start

    start.run(sheet, _device(options), _model(options), is_tiny=_is_tiny(options))


def _fp8(sheet: Sheet, options: PartOptions) -> None:
    from bench.device import float8, offline

    measured = offline.Options(options.seconds, options.drain_s, options.budgets[:1], options.repeats)
    float8.run(sheet, _device(options), _model(options, is_float8=True), measured, is_tiny=_is_tiny(options))


def _model(options: PartOptions, *, is_float8: bool = False) -> Path:
    from bench.device.random_model import written

    return written(options.scratch, "tiny" if _is_tiny(options) else "8B", _device(options), is_float8=is_float8)


def _device(options: PartOptions) -> Any:
    import torch

    return torch.device(options.device)


def _is_tiny(options: PartOptions) -> bool:
    return options.device == "cpu"
