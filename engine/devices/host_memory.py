"""How much memory this process may still take: the machine's, or its control group's where that is less.

Memory that the kernel would give back when asked, the page cache above all, counts as free; so does swap. Where nothing
can be known (no /proc), there is no limit. Knows nothing of what the memory is for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

UNKNOWN = sys.maxsize


class _Names(NamedTuple):
    """Where a version of control groups has them, and what it calls its files and the page cache in `memory.stat`."""

    root: str  # below /sys/fs/cgroup
    limit: str
    used: str
    cached: tuple[str, str]


_VERSION_1 = _Names(
    "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_VERSION_2 = _Names("", "memory.max", "memory.current", ("inactive_file", "active_file"))


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes. `root` is for tests."""
    return min(_of_machine(root / "proc/meminfo"), _of_groups(root))


def _of_machine(meminfo: Path) -> int:
    facts = _facts(meminfo)
    if "MemAvailable" not in facts:
        return UNKNOWN
    return (facts["MemAvailable"] + facts.get("SwapFree", 0)) << 10


def _of_groups(root: Path) -> int:
    """The least that this process's group and those around it leave."""
    least = UNKNOWN
    for line in _lines(root / "proc/self/cgroup"):
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
        most, used = int((group / names.limit).read_text()), int((group / names.used).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return UNKNOWN
    facts = _facts(group / "memory.stat")
    return max(most - used + sum(facts.get(name, 0) for name in names.cached), 0)


def _facts(path: Path) -> dict[str, int]:
    """Lines of a name and a whole number."""
    words = [line.replace(":", " ").split() for line in _lines(path)]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
