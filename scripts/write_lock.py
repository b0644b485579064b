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
EXTRAS = ("engine", "speech", "images", "tracing", "embedded", "dev")
OUTSIDE = re.compile(r"torch|triton.*|nvidia-(?!ml-py).*|cuda-.*|hearth|pip|setuptools|wheel")
HEADER = """\
# The versions that `make setup` installs: the requirements of pyproject.toml (extras engine, speech, images, tracing,
# embedded and dev) and their requirements. Without hashes and without torch, whose build depends on the machine (see
# scripts/setup.sh).
# Written by `make lock` from the environment. To change a version, install it there and write the file again.
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
            sys.exit(f"lock: {name} is required but not installed: run make setup")
        found[name] = Version(Version(package.version).public)
        for requirement in map(Requirement, package.requires or ()):
            child = canonicalize_name(requirement.name)
            # torch is not locked, but its pure-Python requirements are.
            if _applies(requirement, wanted) and (child == "torch" or not OUTSIDE.fullmatch(child)):
                waiting.append((child, frozenset(requirement.extras)))
    return found


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Return True if a requirement applies to this Python with one of the extras or without."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})


def lock_text() -> str:
    """Return the content of the lock file for this Python environment."""
    lines = [
        f"{name}=={version}"
        for name, version in sorted(closure("hearth", EXTRAS).items())
        if not OUTSIDE.fullmatch(name)
    ]
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    LOCK.write_text(lock_text())
    print(f"wrote {LOCK.name}: {sum('==' in line for line in LOCK.read_text().splitlines())} packages")
