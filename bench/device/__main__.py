"""Measure a GPU in one call within ten minutes: the first thing to run on a new one.

    python -m bench.device --out FOLDER        (torch 2.11 or later with Triton; msgspec, llguidance, safetensors)
    python -m bench.device --device cpu --out FOLDER        (checks the scripts themselves)

Runs the card's facts, the attention kernel, NCCL with one and two ranks, a model with one and two ranks, and, if pytest
is installed, the tests marked `gpu`. Parts that need more devices than there are are skipped and named. A failing part
does not stop the others. Each part's output is a file in FOLDER; a short table comes last.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

PART_S = 240.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    table = [run(name, command, options.out) for name, command in parts(options.device).items()]
    sys.stdout.write("\n".join(table) + "\n")
    sys.exit(any(" failed" in line for line in table))


def parts(device: str) -> dict[str, list[str]]:
    """Return the arguments of each part, the most informative part first."""
    is_cpu, on = device == "cpu", ["--device", device]
    few = ["--seconds", "0.001"] if is_cpu else []
    model = ["--shape", "tiny", "--streams", "1,4", "--tokens", "8"] if is_cpu else ["--shape", "8B"]
    found = {
        "attention": ["-m", "bench.device.attention", *on, *few],
        "one rank": ["-m", "bench.device.collectives", *on, "--ranks", "1", "--repeats", "5" if is_cpu else "50"],
        "two ranks": ["-m", "bench.device.collectives", *on, "--ranks", "2", "--repeats", "5" if is_cpu else "50"],
        "model": ["-m", "bench.device.ranks", *on, *model],
        "facts": ["-m", "bench.device.facts", *on, *few],
    }
    if not is_cpu and importlib.util.find_spec("pytest") is not None:
        found["tests"] = ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/engine", "tests/bench"]
    return found


def run(name: str, command: list[str], folder: Path) -> str:
    """Run one part and return its line of the table."""
    started = time.perf_counter()
    path = folder / f"{name.replace(' ', '_')}.txt"
    with path.open("w") as file:
        try:
            code = subprocess.run(
                [sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, timeout=PART_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    result = path.read_text().strip()
    last = result.splitlines()[-1][:200] if result else ""
    kind = "ok" if code == 0 else "skipped" if last.startswith("skipped: ") else f"failed ({code})"
    return f"{name:<10} {kind:<12} {time.perf_counter() - started:6.1f} s   {last if kind != 'ok' else path}"


if __name__ == "__main__":
    main()
