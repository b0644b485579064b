"""Compile the kernels in a few seconds: `python -m engine.kernels.native.build`.

Needs only a C++ compiler (`$CXX`, c++, g++ or clang++). Compiles for the best instruction set of this machine, or with
`--all` for every instruction set, for an image that will run elsewhere. A library is tested in a separate process
before it can be loaded, if this machine can run it. Optional: without a library everything uses torch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from engine.kernels.native.library import (
    CACHE,
    INSTRUCTION_SETS,
    SOURCES,
    InstructionSet,
    compiler_flags,
    library_path,
    usable_instruction_sets,
)

_TIMEOUT_S = 300.0
_MOST_SAID = 2000  # characters of a compiler's message
_TRIAL = "from pathlib import Path; from engine.kernels.native.operators import check; check(Path({path!r}))"


class BuildError(Exception):
    """There is no compiler, it failed, or its output computes wrong results."""


class CompilerError(BuildError):
    """The compiler failed."""


def build(folder: Path = CACHE) -> Path:
    """Return the library for this machine; build it if it does not exist. Raises BuildError.

    If a compiler is too old for the best instruction set, a lower one is built.
    """
    *better, last = usable_instruction_sets()
    for instructions in better:
        try:
            return build_for(instructions, folder)
        except CompilerError:
            continue
    return build_for(last, folder)


def build_for(instructions: InstructionSet, folder: Path = CACHE) -> Path:
    """Return the library for an instruction set; build it if it does not exist. Raises BuildError."""
    path = library_path(instructions, folder)
    if path.exists():
        return path
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("there is no C++ compiler: install g++ or clang++, or name one in CXX")
    draft = path.with_name(f".{path.stem}.{os.getpid()}.so")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _run([compiler, *compiler_flags(instructions), *map(str, SOURCES), "-o", str(draft)], f"{compiler} failed")
        except BuildError as error:
            raise CompilerError(str(error)) from None
        if instructions in usable_instruction_sets():
            _run([sys.executable, "-c", _TRIAL.format(path=str(draft))], "the compiled kernels do not work")
        draft.replace(path)
    except OSError as error:
        raise BuildError(f"{folder}: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def find_compiler() -> str | None:
    wanted = os.environ.get("CXX")
    names = (wanted,) if wanted else ("c++", "g++", "clang++")
    return next((found for name in names if (found := shutil.which(name))), None)


def _run(command: list[str], failure: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{failure}: not done after {_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise BuildError(f"{failure} (status {done.returncode}): {done.stderr.strip()[-_MOST_SAID:]}")


def main() -> int:
    """Build and report progress, since a busy machine may take a minute, and the effect of a missing library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="compile for every instruction set of this architecture")
    is_all = parser.parse_args().all
    started_s = time.monotonic()
    wanted = INSTRUCTION_SETS if is_all else usable_instruction_sets()[:1]
    if (compiler := find_compiler()) and not all(library_path(each).exists() for each in wanted):
        names = ", ".join(each.name for each in wanted)
        _say(f"compiling for {names} with {compiler}: about 20 seconds each on an idle machine, once")
    try:
        paths = [build_for(each) for each in wanted] if is_all else [build()]
    except BuildError as error:
        lost = "text is generated through torch alone, at 60 to 90 % of the speed"
        _say(f"not compiled, so {lost}; `{sys.executable} -m engine.kernels.native.build` tries again: {error}")
    else:
        _say(f"ready after {time.monotonic() - started_s:.0f} s: {', '.join(map(str, paths))}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"kernels: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
