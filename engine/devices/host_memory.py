"""Available host memory: the machine's, or that of the control group if it is less.

Memory that the kernel can reclaim, above all the page cache, and swap count as available. Without /proc there is no
limit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

UNKNOWN = sys.maxsize


class _Names(NamedTuple):
    """File and field names of one version of control groups."""

    root: str  # below /sys/fs/cgroup
    limit: str
    used: str
    cached: tuple[str, str]  # page cache fields in `memory.stat`


_VERSION_1 = _Names(
    "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_VERSION_2 = _Names("", "memory.max", "memory.current", ("inactive_file", "active_file"))


def available_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still allocate. `root` is for tests."""
    return min(_of_machine(root / "proc/meminfo"), _of_groups(root))


def _of_machine(meminfo: Path) -> int:
    fields = _read_fields(meminfo)
    if "MemAvailable" not in fields:
        return UNKNOWN
    return (fields["MemAvailable"] + fields.get("SwapFree", 0)) << 10


def _of_groups(root: Path) -> int:
    """Return the least that this process's control group and its parents have left."""
    least = UNKNOWN
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        names = _VERSION_1 if controllers else _VERSION_2
        top = root / "sys/fs/cgroup" / names.root
        group = top / path.strip("/")
        for each in (group, *group.parents):
            if top == each or top in each.parents:
                least = min(least, _of_group(each, names))
    return least


def _of_group(group: Path, names: _Names) -> int:
    try:
        limit, used = int((group / names.limit).read_text()), int((group / names.used).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return UNKNOWN
    fields = _read_fields(group / "memory.stat")
    return max(limit - used + sum(fields.get(name, 0) for name in names.cached), 0)


def _read_fields(path: Path) -> dict[str, int]:
    """Return the lines of a file that are a name and an integer."""
    words = [line.replace(":", " ").split() for line in _read_lines(path)]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
