"""Runs the tests that prove the promises and notes in `cli/figures.jsonl` what they measured: `make figures`.

All promises take some minutes; `make figures ARGS="P6 T4"` measures those. Of a promise whose tests note nothing of
their own, how many passed is its figure. Nothing is noted of a promise one of whose tests fails. What is measured
elsewhere (a campaign of hours, another machine) is noted with `--note`.
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
from cli.evidence import FIGURES, read_promises, read_run

ROOT = Path(__file__).resolve().parent.parent
Line = dict[str, str]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make figures", description=__doc__)
    parser.add_argument("ids", nargs="*", help="promises, as P6; all unless given")
    parser.add_argument("--into", type=Path, default=FIGURES, help="the file of figures")
    parser.add_argument("--note", metavar="FIGURE", help="note this of the one promise, and run nothing")
    parser.add_argument("--command", default="", help="with --note: what it was measured by")
    asked = parser.parse_args(arguments)
    promises = {promise["id"]: promise for promise in read_promises()}
    unknown = [id_ for id_ in asked.ids if id_ not in promises]
    if unknown:
        parser.error(f"no promise {unknown[0]}; there are {' '.join(promises)}")
    wanted = [promises[id_] for id_ in asked.ids or promises]
    if asked.note:
        if len(asked.ids) != 1:
            parser.error("--note is of one promise")
        new = [figures.line(asked.ids[0], asked.note, asked.command)]
        status = 0
    else:
        new, status = measure(wanted)
    write(asked.into, new, promises)
    for line in new:
        print(f"{line['promise']:>4}  {line['figure']}")
    missing = [promise["id"] for promise in wanted if promise["id"] not in {line["promise"] for line in new}]
    if missing:
        print(f"no figure: {' '.join(missing)}", file=sys.stderr)
    return status or bool(missing)


def measure(wanted: Iterable[Mapping[str, Any]]) -> tuple[list[Line], int]:
    """One line for each promise whose tests passed, and pytest's status."""
    wanted = list(wanted)
    files = sorted({file for promise in wanted for file in promise["tests"]})
    with tempfile.TemporaryDirectory(prefix="hearth-figures-") as name:
        noted, record = Path(name) / "noted.jsonl", Path(name) / "run.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", f"--junitxml={record}", *files]
        environ = os.environ | {"HEARTH_FIGURES": str(noted), "PYTHONPATH": str(ROOT)}
        status = subprocess.run([*command, "-o", "junit_family=xunit1"], cwd=ROOT, env=environ, check=False).returncode
        lines = [json.loads(text) for text in noted.read_text().splitlines()] if noted.is_file() else []
        runs = read_run(record) if record.is_file() else {}
    return [line for promise in wanted if (line := summed_up(promise, lines, runs)) is not None], status


def summed_up(promise: Mapping[str, Any], lines: Iterable[Line], runs: Mapping[str, str]) -> Line | None:
    """What was noted of a promise, and how many of its tests passed; None where one failed or none ran."""
    counts = [[int(part.split()[0]) for part in runs[file].split(", ")] for file in promise["tests"] if file in runs]
    num_passed, num_failed = sum(count[0] for count in counts), sum(count[1] for count in counts)
    if len(counts) < len(promise["tests"]) or num_failed or not num_passed:
        return None
    noted = list(dict.fromkeys(line["figure"] for line in lines if line["promise"] == promise["id"]))
    figure = "; ".join([*noted, f"{num_passed} tests passed"])
    return figures.line(promise["id"], figure, f"make figures ARGS={promise['id']}")


def write(path: Path, new: Iterable[Line], promises: Iterable[str]) -> None:
    """Each promise's newest line, in the order of the promises; what is no promise any more goes."""
    old = [json.loads(text) for text in path.read_text().splitlines()] if path.is_file() else []
    newest = {line["promise"]: line for line in [*old, *new]}
    kept = [newest[id_] for id_ in promises if id_ in newest]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
