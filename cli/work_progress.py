"""Progress of long work in steps on standard error, with rate and remaining time.

A progress bar per step on a terminal, a line every few seconds elsewhere, JSON lines with `--json`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnProgress = Callable[[str, int, int, str], None]  # step, work done, total work, unit of both

_LINE_INTERVAL_S = 2.0
_JSON_INTERVAL_S = 0.5


@contextmanager
def work_progress(is_json: bool) -> Iterator[OnProgress]:
    """Yield a function to call at the start of each step, after each part of it, and at its end."""
    if not is_json and sys.stderr.isatty():
        with _bars() as on_progress:
            yield on_progress
    else:
        yield _lines(is_json)


def _lines(is_json: bool) -> OnProgress:
    """Return a callback that prints the first, the last and some other states of each step."""
    starts_s: dict[str, float] = {}
    last_s = 0.0

    def on_progress(step: str, done: int, total: int, unit: str) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        is_first = step not in starts_s
        start_s = starts_s.setdefault(step, now_s)
        interval_s = _JSON_INTERVAL_S if is_json else _LINE_INTERVAL_S
        if not is_first and done < total and now_s - last_s < interval_s:
            return
        last_s = now_s
        rate = done / (now_s - start_s) if done and now_s > start_s else None
        left_s = (total - done) / rate if rate else None
        if is_json:
            state = {"step": step, "done": done, "total": total, "unit": unit, "per_s": rate, "remaining_s": left_s}
            sys.stderr.write(json.dumps(state) + "\n")
        else:
            sys.stderr.write(f"hearth: {step}: {_state_text(done, total, unit, rate, left_s)}\n")
        sys.stderr.flush()

    return on_progress


def _state_text(done: int, total: int, unit: str, rate: float | None, left_s: float | None) -> str:
    if rate is None or left_s is None:
        return f"{_amount_text(total, unit)}"
    speed = f"{_amount_text(rate, unit)}/s"
    if done >= total:
        return f"done, {_amount_text(total, unit)} at {speed}"
    return f"{100 * done // total} % of {_amount_text(total, unit)}, {speed}, {left_s:.0f} s left"


def _amount_text(amount: float, unit: str) -> str:
    if unit == "bytes":
        return f"{amount / 1e6:.1f} MB"
    return f"{amount:.0f} {unit}" if amount >= 10 or amount == int(amount) else f"{amount:.1f} {unit}"


@contextmanager
def _bars() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )  # fmt: skip
    console, bar = Console(stderr=True), None

    def on_progress(step: str, done: int, total: int, unit: str) -> None:
        nonlocal bar
        if bar is None:  # one display per step: another part of the command may show its own between steps
            bar = Progress(*columns, console=console)
            bar.add_task(step, total=total, speed="")
            bar.start()
        elapsed_s = bar.tasks[0].elapsed
        speed = f"{_amount_text(done / elapsed_s, unit)}/s" if done and elapsed_s else ""
        bar.update(bar.task_ids[0], completed=done, speed=speed)
        if done >= total:
            bar.stop()
            bar = None

    try:
        yield on_progress
    finally:
        if bar is not None:
            bar.stop()
