"""A run: parts one after the other, each in a process of its own with a time limit, and a table at the end."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.device import figures
from bench.device.parts import PARTS, SEPARATE, fill_unmeasured

_GRACE_S = 4.0  # extra time for a part to end
_OUTPUT_CHARACTERS = 4000


def run_all(options: argparse.Namespace) -> int:
    """Return 1 if a result is wrong, 2 for invalid options."""
    end = time.monotonic() + options.until
    names = options.parts.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.stderr.write(f"bench.device: no part {unknown[0]!r}; parts are {', '.join(PARTS)}\n")
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    lines, is_wrong = [], False
    with _scratch() as scratch:
        for position, name in enumerate(names):
            path, started = options.out / f"{name}.json", time.monotonic()
            if options.device == "fake":
                fill_unmeasured(name, path)
                state = ""
            elif is_wrong and not options.keep_going and name not in SEPARATE:
                state = "not started: a result is wrong"
            else:
                state = _run_one(name, names[position + 1 :], options, end, scratch, path)
            lines.append(_line(name, path, state, time.monotonic() - started))
            sys.stderr.write(lines[-1] + "\n")  # the run may be killed before it prints the table
            is_wrong |= path.exists() and figures.read(path)["state"] == "wrong"
    sys.stderr.flush()
    sys.stdout.write("\n".join(["", "part       state        seconds  figures", *lines]) + "\n")
    return int(is_wrong)


def _run_one(name: str, later: list[str], options: argparse.Namespace, end: float, scratch: Path, path: Path) -> str:
    """Run a part. Return why it was not started, or an empty string."""
    part, remaining = PARTS[name], end - time.monotonic() - _GRACE_S
    is_hurried = options.device == "cuda"
    if is_hurried and remaining < part.least_s:
        return f"not started: {max(remaining, 0):.0f} s are left, and it needs {part.least_s:.0f}"
    for_later = sum(PARTS[each].least_s for each in later)
    part_s = min(part.most_s, max(remaining - for_later, part.least_s), remaining if is_hurried else part.most_s)
    command = [
        sys.executable, "-m", "bench.device", "part", name, options.device, str(path), str(part_s),
        options.budgets, "--seconds", str(options.seconds), "--drain", str(options.drain),
        "--repeats", str(options.repeats), "--scratch", str(scratch), *(["--keep-going"] if options.keep_going else []),
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status: int | None = process.wait(part_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also ends the child processes of the part
        process.wait()
        output.seek(0)
        text = output.read()[-_OUTPUT_CHARACTERS:]
    _complete(path, name, options.device, status, text)
    return ""


def _complete(path: Path, name: str, device: str, status: int | None, output: str) -> None:
    """Close the file of a part that did not close it, and write one if there is none."""
    try:
        content = figures.read(path)
    except (OSError, figures.InvalidFigures):
        figures.Sheet(path, name, device).close("failed", output)
        content = figures.read(path)
    if content["state"] == "running":
        error = output if status is not None else f"killed: it took too long\n{output}"
        figures.write(path, content | {"state": "timed out" if status is None else "failed", "error": error})


def _line(name: str, path: Path, state: str, seconds: float) -> str:
    if state:
        return f"{name:10} {state}"
    content = figures.read(path)
    text = content["headline"]
    if content["wrong"]:
        text += f"; wrong: {json.dumps(content['wrong'])[:1500]}"
    elif content["error"]:
        text += "; " + content["error"].strip().splitlines()[-1][:600]
    return f"{name:10} {content['state']:12} {seconds:7.1f}  {text}"


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Provide a folder for the random model, in memory if there is a file system in memory."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="bench-device-") as folder:
        yield Path(folder)
