"""The scripts to run first on a GPU machine are checked without a GPU, and run where there is one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from bench.device import ranks


def output_of(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def was_interpreter_finalized(*arguments: str) -> bool:
    """Return True if the interpreter of a successful script was finalized."""
    program = (
        "import atexit, runpy, sys; atexit.register(print, 'analyzed'); sys.argv = sys.argv[1:]; "
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", program, *arguments]
    return "analyzed" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.full
def test_two_ranks_give_the_same_tokens_as_one() -> None:
    options = ("--device", "cpu", "--shape", "tiny", "--streams", "2", "--tokens", "4")
    found = output_of("bench.device.ranks", *options)
    assert found["is_equal"]
    assert set(found["by_ranks"]) == {"1", "2"}
    assert output_of("bench.device.collectives", "--device", "cpu", "--repeats", "2")["is_right"]


@pytest.mark.full
def test_scripts_with_a_process_group_exit_without_finalizing_the_interpreter() -> None:
    of_two = {"model_dir": str(ranks.SPARK), "dtype": "float32", "streams": [1], "tokens": 2, "threads": 1}
    assert not was_interpreter_finalized(
        "bench.device.ranks", "--group", json.dumps(of_two | {"device": "cpu", "ranks": 2})
    )
    assert not was_interpreter_finalized("bench.device.collectives", "--device", "cpu", "--repeats", "2")
    assert was_interpreter_finalized("bench.device.collectives", "--help")


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_gpu_collectives_and_model_match_the_cpu() -> None:
    assert output_of("bench.device.collectives", "--ranks", "1", "--repeats", "5")["backend"] == "nccl"
    found = output_of("bench.device.ranks", "--shape", "tiny", "--streams", "2", "--tokens", "4")
    assert found["is_equal"]
    assert found["by_ranks"]["1"]["is_equal"]
