"""Run the tests that prove the promises and store their measurements in `scripts/figures.jsonl`: `make figures`.

All promises take some minutes; `make figures ARGS="P6 T4"` measures only those. Tests record figures with
`bench.figures.record`. For a promise with a `counted` text, the figure is the number of passed test cases instead. A
promise gets no new figure if one of its tests fails. Figures that are measured elsewhere (a campaign of hours, another
machine) are stored with `--note`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import figures
from scripts.promises import FIGURES, read_promises, read_test_run

ROOT = Path(__file__).resolve().parent.parent
Line = dict[str, str]


def main(arguments: Sequence[str]) -> int:
    """Return the exit status: 0 if every promise has a new figure."""
    parser = argparse.ArgumentParser(prog="make figures", description=__doc__)
    parser.add_argument("ids", nargs="*", help="promise ids such as P6; default: all")
    parser.add_argument("--into", type=Path, default=FIGURES, help="file of figures to update")
    parser.add_argument("--note", metavar="FIGURE", help="store this figure for one promise, and run no test")
    parser.add_argument("--command", default="", help="with --note: the command that measured the figure")
    options = parser.parse_args(arguments)
    promises = {promise["id"]: promise for promise in read_promises()}
    unknown = [id_ for id_ in options.ids if id_ not in promises]
    if unknown:
        parser.error(f"there is no promise {unknown[0]}; promises are {' '.join(promises)}")
    selected = [promises[id_] for id_ in options.ids or promises]
    if options.note:
        if len(options.ids) != 1:
            parser.error("--note needs exactly one promise id")
        new = [figures.line(options.ids[0], options.note, options.command)]
        status = 0
    else:
        new, status = measure(selected)
    write(options.into, new, promises)
    for line in new:
        print(f"{line['promise']:>4}  {line['figure']}")
    measured = {line["promise"] for line in new}
    missing = [promise["id"] for promise in selected if promise["id"] not in measured]
    if missing:
        print(f"no figure: {' '.join(missing)}", file=sys.stderr)
    return status or bool(missing)


def measure(promises: Iterable[Mapping[str, Any]]) -> tuple[list[Line], int]:
    """Run the tests of some promises; return a line for each proven promise, and pytest's exit status."""
    promises = list(promises)
    files = sorted({file for promise in promises for file in promise["tests"]})
    with tempfile.TemporaryDirectory(prefix="hearth-figures-") as name:
        recorded, report = Path(name) / "recorded.jsonl", Path(name) / "run.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", f"--junitxml={report}", *files]
        environ = os.environ | {"HEARTH_FIGURES": str(recorded), "PYTHONPATH": str(ROOT)}
        status = subprocess.run([*command, "-o", "junit_family=xunit1"], cwd=ROOT, env=environ, check=False).returncode
        lines = [json.loads(text) for text in recorded.read_text().splitlines()] if recorded.is_file() else []
        runs = read_test_run(report) if report.is_file() else {}
    return [line for promise in promises if (line := summarize(promise, lines, runs)) is not None], status


def summarize(promise: Mapping[str, Any], lines: Iterable[Line], runs: Mapping[str, str]) -> Line | None:
    """Return the figures that tests recorded for a promise, or the number of test cases, as one line.

    Returns None if one of its tests failed, if a test file did not run, or if nothing was recorded or counted.
    """
    counts = [[int(part.split()[0]) for part in runs[file].split(", ")] for file in promise["tests"] if file in runs]
    num_passed, num_failed = sum(count[0] for count in counts), sum(count[1] for count in counts)
    recorded = list(dict.fromkeys(line["figure"] for line in lines if line["promise"] == promise["id"]))
    if not recorded and "counted" in promise:
        recorded = [f"{num_passed} {promise['counted']}"]
    if len(counts) < len(promise["tests"]) or num_failed or not num_passed or not recorded:
        return None
    return figures.line(promise["id"], "; ".join(recorded), f"make figures ARGS={promise['id']}")


def write(path: Path, new: Iterable[Line], promises: Iterable[str]) -> None:
    """Update a file of figures: the newest line of each promise, in the order of the promises."""
    old = [json.loads(text) for text in path.read_text().splitlines()] if path.is_file() else []
    newest = {line["promise"]: line for line in [*old, *new]}
    lines = [newest[id_] for id_ in promises if id_ in newest]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
