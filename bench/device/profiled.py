"""Profile steps: time of each kernel by name, and of the gaps between kernels. Part `profile` of `bench.device`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType

from bench.device import closed_loop, offline
from bench.device.figures import Sheet

_NUM_KERNELS = 40
_BUDGET = 512
_PROFILED_S = 10.0


def rows() -> list[str]:
    return ["loop", "kernels", "gaps"]


def run(sheet: Sheet, device: torch.device, folder: Path, *, is_tiny: bool) -> None:
    """Fill a sheet with device microseconds by kernel and the idle time between kernels, over a part of a loop."""
    in_flight = 8 if is_tiny else offline.IN_FLIGHT
    runner, _ = offline.load(folder, device, in_flight, _BUDGET)
    parameters = next(iter(offline.CASES.values()))
    shape: dict[str, Any] = {"scale": 0.05, "num_requests": 16} if is_tiny else {}
    load = closed_loop.Load(parameters, in_flight, _BUDGET, seconds=6, drain_s=0.0, **shape)
    closed_loop.run(runner, load)  # captures graphs
    profiler_activity = torch.profiler.ProfilerActivity
    activities = [profiler_activity.CUDA] if device.type == "cuda" else [profiler_activity.CPU]
    # Reading the events takes about as long again as recording them.
    seconds = max(1.0, min(_PROFILED_S, (sheet.left_s - 5) / 3))
    with torch.profiler.profile(activities=activities) as profiler:
        figures = closed_loop.run(runner, replace(load, seconds=seconds))
    sheet.add("loop", figures)
    recorded = profiler.profiler.kineto_results.events()
    if device.type == "cuda":
        recorded = [
            event for event in recorded if event.device_type() == DeviceType.CUDA
        ]  # events of the host are ignored
    events = sorted((event.start_ns(), event.duration_ns(), event.name()) for event in recorded)
    by_name: dict[str, list[float]] = {}
    for _, duration, name in events:
        entry = by_name.setdefault(name[:120], [0, 0.0])
        entry[0] += 1
        entry[1] += duration / 1e3
    largest = sorted(by_name.items(), key=lambda item: -item[1][1])[:_NUM_KERNELS]
    sheet.add("kernels", {name: {"count": int(count), "us": round(us, 1)} for name, (count, us) in largest})
    gaps = _gaps(events)
    sheet.add("gaps", gaps)
    idle_us, span_us = sum(each["us"] for each in gaps.values()), (events[-1][0] - events[0][0]) / 1e3
    sheet.headline(f"idle between kernels: {idle_us / max(span_us, 1):.1%}; most time in {largest[0][0][:60]}")


def _gaps(events: list[tuple[int, int, str]]) -> dict[str, dict[str, float]]:
    """Return number and total of the gaps between successive kernels, by their length in microseconds."""
    limits = {"below 2": 2.0, "2 to 10": 10.0, "10 to 100": 100.0, "100 to 1000": 1000.0, "above 1000": float("inf")}
    found = {kind: {"count": 0, "us": 0.0} for kind in limits}
    last = events[0][0] if events else 0
    for start, duration, _ in events:
        gap = (start - last) / 1e3
        if gap > 0:
            kind = next(name for name, limit in limits.items() if gap < limit)
            found[kind]["count"] += 1
            found[kind]["us"] += gap
        last = max(last, start + duration)
    return {kind: {"count": each["count"], "us": round(each["us"], 1)} for kind, each in found.items()}
