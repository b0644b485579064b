"""Compiled kernels: what they need on an H200 is recorded, and a kernel that gets worse is reported."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.kernels.compile import Resources, launches, problems_of, programs_per_sm, read_record
from engine.kernels.kernel_cache import stale_reason

COMPILER = Path(__file__).parents[3] / ".cache" / "triton" / "sm90"  # see scripts/triton.sh
GOOD = Resources(registers=94, shared_bytes=38_912, spills=0, async_loads=32, tensor_ops=12, programs_per_sm=5)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"spills": 3}, "kernel: 3 spills of registers"),
        ({"programs_per_sm": 4}, "kernel: 4 programs per SM, recorded are 5"),
        ({"async_loads": 0}, "kernel: async_loads is 0, recorded are 32"),
        ({"tensor_ops": 0}, "kernel: tensor_ops is 0, recorded are 12"),
    ],
)
def test_kernel_that_got_worse_is_reported(changes: dict[str, int], problem: str):
    assert problems_of({"kernel": dataclasses.replace(GOOD, **changes)}, {"kernel": GOOD}) == [problem]


def test_better_kernel_is_accepted_and_one_without_a_record_is_not():
    better = dataclasses.replace(GOOD, registers=80, programs_per_sm=6)
    assert problems_of({"kernel": better}, {"kernel": GOOD}) == []
    (problem,) = problems_of({"kernel": GOOD, "new": GOOD}, {"kernel": GOOD})
    assert problem.startswith("new: no record; run")


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "num_warps", "programs"), [(94, 38_912, 4, 5), (179, 81_920, 4, 2), (31, 32, 8, 8)]
)
def test_programs_per_multiprocessor_follow_from_registers_and_shared_memory(
    registers: int, shared_bytes: int, num_warps: int, programs: int
):
    assert programs_per_sm(registers, shared_bytes, num_warps) == programs


def test_every_launch_has_a_record_without_spills():
    """A launch of several kernels has a record for each, with the number of the kernel behind its name."""
    record, names = read_record(), launches().keys()
    assert names <= record.keys()
    assert {name if name in names else name.rpartition(" ")[0] for name in record} == names
    assert [name for name, each in record.items() if each.spills] == []


@pytest.mark.full
@pytest.mark.timeout(900)
def test_fresh_compilation_agrees_with_the_record_and_fills_a_kernel_cache(tmp_path: Path):
    if not (COMPILER / "triton").is_dir():
        pytest.skip("no Triton 3.6 here: sh scripts/triton.sh brings it")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(COMPILER)])}
    command = [sys.executable, "-m", "engine.kernels.compile", "--out", str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert len(list(tmp_path.rglob("*.cubin"))) > len(launches()) // 2  # equal launches share a kernel
    assert list(tmp_path.rglob("cuda_utils*.so"))
    assert len(list(tmp_path.rglob("__triton_launcher*.so"))) >= 2
    # A module that is not linked with the driver's library fails to load on a machine that has the driver.
    assert all(b"\0libcuda.so.1\0" in dynamic_strings(path) for path in tmp_path.rglob("*.so"))
    assert stale_reason(tmp_path).count("Triton 3.6.0") == 1  # this process has another Triton, or none


def dynamic_strings(path: Path) -> bytes:
    return subprocess.check_output(["objcopy", "-O", "binary", "--only-section=.dynstr", path, "/dev/stdout"])
