"""Available host memory is the least that the machine and the control groups of the process have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.devices.host_memory import UNKNOWN, available_bytes

MACHINE = {"proc/meminfo": "MemTotal:  4000 kB\nMemFree:  100 kB\nMemAvailable:  3000 kB\nSwapFree:  500 kB\n"}
GROUP = "sys/fs/cgroup/a/b"
SECOND = {"proc/self/cgroup": "0::/a/b\n", f"{GROUP}/memory.current": "900000\n"}
FIRST = {
    "proc/self/cgroup": "9:name=systemd:/\n4:memory:/a\n0::/\n",
    "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1000000\n",
    "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "900000\n",
    "sys/fs/cgroup/memory/a/memory.stat": "cache 9\ntotal_inactive_file 50000\ntotal_active_file 7\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, UNKNOWN),
        (MACHINE, 3500 << 10),
        (MACHINE | SECOND | {f"{GROUP}/memory.max": "max\n"}, 3500 << 10),
        (MACHINE | SECOND | {f"{GROUP}/memory.max": "1000000\n"}, 100_000),
        (SECOND | {f"{GROUP}/memory.max": "1000000\n", f"{GROUP}/memory.stat": "inactive_file 25\n"}, 100_025),
        (SECOND | {f"{GROUP}/memory.max": "5\n"}, 0),
        (
            SECOND
            | {f"{GROUP}/memory.max": "max\n", f"{GROUP}/../memory.max": "70\n", f"{GROUP}/../memory.current": "9\n"},
            61,
        ),
        (MACHINE | FIRST, 150_007),
    ],
)
def test_available_memory_is_the_tightest_limit(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available_bytes(tmp_path) == expected


def test_available_memory_is_positive_on_this_machine() -> None:
    assert available_bytes() > 1 << 20
