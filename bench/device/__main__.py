"""Measure a GPU within minutes, or check the measurement without one.

    python -m bench.device run --until 540 --out FOLDER [--parts facts,kernels,families]
    python -m bench.device run --device cpu --out FOLDER        runs every part for real on tiny shapes
    python -m bench.device run --device fake --out FOLDER       writes every row as "not measured"
    python -m bench.device record FOLDER                        checks the files and stores them in bench/device/results

Each part runs in a process of its own and writes one JSON file, which grows with every figure; a table comes last. No
part starts that does not fit into the remaining time, and a part that fails is recorded with its error. If a result is
wrong, no speed is measured after that, and the exit status is 1. Needs torch 2.11 or later with Triton, and the wheels
of `scripts/device_wheels.sh`. Leaves the card's settings unchanged.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.device.parts import PARTS, PartOptions, run_part
from bench.device.records import RESULTS, store
from bench.device.runs import run_all


def main() -> int:
    options = _parser().parse_args()
    if options.command == "record":
        return store(options.folder, options.results)
    if options.command == "run":
        return run_all(options)
    budgets = tuple(int(each) for each in options.budgets.split(","))
    return run_part(
        options.name,
        PartOptions(
            options.device, options.path, options.scratch, options.part_s, options.seconds, options.drain, budgets,
            options.repeats, options.keep_going,
        ),
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure")
    run.add_argument("--device", default="cuda", choices=("cuda", "cpu", "fake"))
    run.add_argument("--until", type=float, default=540, help="seconds after which no part runs any more")
    run.add_argument("--parts", default=",".join(PARTS), help="comma separated, in the order in which they run")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--budgets", default="512,1024", help="tokens per step of part offline, comma separated")
    record = commands.add_parser("record", help="check and store the files of a run")
    record.add_argument("folder", type=Path)
    record.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    part = commands.add_parser("part", help=argparse.SUPPRESS)
    for name, kind in (("name", str), ("device", str), ("path", Path), ("part_s", float), ("budgets", str)):
        part.add_argument(name, type=kind)
    part.add_argument("--scratch", type=Path, default=Path("/dev/shm"))
    for each in (run, part):
        each.add_argument("--seconds", type=float, default=25, help="of each case of parts offline and http")
        each.add_argument("--drain", type=float, default=60, help="seconds for sequences of part offline to end")
        each.add_argument("--repeats", type=int, default=2, help="runs of each case of part offline")
        each.add_argument("--keep-going", action="store_true", help="measure speeds even if a result is wrong")
    return parser


if __name__ == "__main__":
    sys.exit(main())
