"""Programs of the operating system that do a model's work: found on the PATH, started for one input at a time.

A program gets an empty environment, no terminal, a limit of CPU time, memory, open files and file size, and is killed
if it does not end in time. Programs are never part of this project: the operator installs their packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 12  # below the time after which a worker that waits counts as hung
_CPU_S = 10
_MEMORY_KB = 1_000_000
_FILE_BLOCKS = 200_000  # largest file, in blocks of 512 bytes
_MAX_OPEN_FILES = 64
# Options of `ulimit`, one per call because not every shell accepts several. A shell sets the limits because a function
# between fork and exec is not safe in a process with threads.
_LIMITS = ("-c 0", f"-t {_CPU_S}", f"-v {_MEMORY_KB}", f"-f {_FILE_BLOCKS}", f"-n {_MAX_OPEN_FILES}")
_KEPT_VARIABLES = ("PATH", "TMPDIR", "LD_LIBRARY_PATH")


class ProgramMissing(OSError):
    """A program is not installed. The text names its package."""


class ProgramFailed(RuntimeError):
    """A program did not produce an output."""


@dataclass(frozen=True)
class Program:
    """An installed program."""

    path: str

    def run(self, arguments: Sequence[str], text: str) -> bytes:
        """Run the program with `text` as its input and return its output. Raises ProgramFailed."""
        limits = "; ".join(f"ulimit {each}" for each in _LIMITS)
        command = ["/bin/sh", "-c", f'{limits}; exec "$0" "$@"', self.path, *arguments]
        environ = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | {"LANG": "C.UTF-8"}
        name = Path(self.path).name
        try:
            done = subprocess.run(
                command, input=text.encode(), capture_output=True, timeout=TIMEOUT_S, check=False, env=environ,
                start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"{name} did not end within {TIMEOUT_S} seconds") from None
        if done.returncode != 0:
            reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"status {done.returncode}"]
            raise ProgramFailed(f"{name} failed: {reason[0][:200]}")
        return done.stdout


def find_program(name: str, package: str) -> Program:
    """Return an installed program. Raises ProgramMissing, naming the package that contains the program."""
    path = shutil.which(name)
    if path is None:
        raise ProgramMissing(f"the program {name} is not installed: apt-get install {package}")
    return Program(path)
