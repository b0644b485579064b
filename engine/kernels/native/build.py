"""Compile the kernels for this machine in a few seconds: `python -m engine.kernels.native.build`.

Needs only a C++ compiler (`$CXX`, c++, g++ or clang++). The result is tested in a separate process before it can be
loaded. Optional: without it everything uses torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from engine.kernels.native.library import CACHE, SOURCES, compiler_flags, library_path

_TIMEOUT_S = 300.0
_MOST_SAID = 2000  # characters of a compiler's message
_TRIAL = "from pathlib import Path; from engine.kernels.native.operators import check; check(Path({path!r}))"


class BuildError(Exception):
    """There is no compiler, it failed, or its output computes wrong results."""


def build(folder: Path = CACHE) -> Path:
    """Return the library's path; build it if it does not exist. Raises BuildError."""
    path = library_path(folder)
    if path.exists():
        return path
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("there is no C++ compiler: install g++ or clang++, or name one in CXX")
    draft = path.with_name(f".{path.stem}.{os.getpid()}.so")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _run([compiler, *compiler_flags(), *map(str, SOURCES), "-o", str(draft)], f"{compiler} failed")
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
    started_s = time.monotonic()
    if not library_path().exists() and (compiler := find_compiler()):
        _say(f"compiling for this processor with {compiler}: some seconds where nothing else runs, once")
    try:
        path = build()
    except BuildError as error:
        lost = "text is generated through torch alone, at 60 to 90 % of the speed"
        _say(f"not compiled, so {lost}; `{sys.executable} -m engine.kernels.native.build` tries again: {error}")
    else:
        _say(f"ready after {time.monotonic() - started_s:.0f} s: {path}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"kernels: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
