"""Run the tests with one marker expression. Skipped tests are listed with their reasons (pytest's `-ra`).

With `--in-two`, two pytest processes share the tests if the machine has two cores: COMPUTE_TESTS run beside all others,
which mostly wait for child processes. On a CPU with AVX-512, the quick kernel tests run a second time. With arguments
for pytest, there is one process with exactly those arguments. If no test has the marker (pytest's exit status 5), a
message is printed and the exit status is 0.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from telemetry.child_process import die_with_parent

ROOT = Path(__file__).parent.parent
# Folders of the second process. Tests in all other folders run in the first process, so each test runs exactly once.
COMPUTE_TESTS = (
    "tests/engine", "tests/spark", "tests/catalog", "tests/documents", "tests/telemetry", "tests/storage",
    "tests/tenants", "tests/service_identity", "tests/weight_files",
)  # fmt: skip
# Tests of CPU kernels. On a CPU with AVX-512, `make test` runs them a second time limited to AVX2 instructions.
KERNEL_TESTS = ("tests/engine/kernels", "tests/engine/models/test_packed_weights.py", "tests/variants")
AVX2_ENVIRON = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
SOME_FAILED, NONE_COLLECTED = 1, 5  # pytest's exit statuses
PROCESS_NAMES = ("the first process", "the second")
POLL_S = 0.1
MAX_THREADS = 4  # threads of each process: test models are small, and a container may have fewer cores than its machine


def split(second: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the pytest arguments of both processes: all tests but those in `second`, and those in `second`."""
    return [f"--ignore={path}" for path in second], ["-o", "cache_dir=.pytest_cache/second", *second]


def run_one(marker: str, arguments: Sequence[str]) -> int:
    """Run one pytest process on this terminal and return its exit status."""
    process = subprocess.Popen(_command(marker, arguments), env=_environ(), preexec_fn=_interrupted_with_parent())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal has sent the signal to pytest, too
            continue
        except SystemExit:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise


def run_two(marker: str, second: Sequence[str]) -> int:
    """Run two pytest processes at once and return the worse exit status. The second one's output is printed last."""
    first_arguments, second_arguments = split(second)
    environ = {"OMP_NUM_THREADS": str(min(max(1, _num_cores() // 2), MAX_THREADS)), **_environ()}
    with (
        tempfile.TemporaryFile() as output,
        _started(_command(marker, second_arguments), environ, output) as second_process,
    ):
        print("tests: two processes; the second one's output is printed last", flush=True)
        with _started(_command(marker, first_arguments), environ) as first_process:
            statuses = [first_process.wait()]
        print(f"\ntests: the second process ({' '.join(second)})", flush=True)
        _copy_until_exit(output, second_process)
        statuses.append(second_process.wait())
    print("tests: " + ", ".join(f"{name} {_meaning(each)}" for name, each in zip(PROCESS_NAMES, statuses, strict=True)))
    failed = [status for status in statuses if status not in (0, NONE_COLLECTED)]
    # A status other than "some tests failed" means that pytest itself failed, which is worse.
    return next((status for status in failed if status != SOME_FAILED), SOME_FAILED) if failed else min(statuses)


def run_kernel_tests_as_avx2(marker: str) -> int:
    """Run the kernel tests with torch, oneDNN and the compiled kernels limited to AVX2. Return pytest's exit status."""
    print("\ntests: the kernel tests again, limited to AVX2", flush=True)
    environ = {**_environ(), **AVX2_ENVIRON}
    command = _command(marker, ["-q", "-o", "cache_dir=.pytest_cache/avx2", *KERNEL_TESTS])
    with _started([sys.executable, "-m", "engine.kernels.native.build"], environ) as build:
        build.wait()
    with _started(command, environ) as process:
        return process.wait()


def has_avx512() -> bool:
    """Return True if this CPU has AVX-512."""
    try:
        return " avx512f " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _meaning(status: int) -> str:
    return {0: "passed", NONE_COLLECTED: "had nothing to run"}.get(status, f"failed (status {status})")


def _command(marker: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", marker, *arguments]


@contextlib.contextmanager
def _started(
    command: Sequence[str], environ: Mapping[str, str], output: BinaryIO | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in its own process group. On an exception, interrupt it once and wait until it has cleaned up."""
    process = subprocess.Popen(
        command,
        env=environ,
        stdout=output,
        stderr=output and subprocess.STDOUT,
        process_group=0,  # Ctrl-C reaches only this process, which then interrupts both
        preexec_fn=_interrupted_with_parent(),
    )
    try:
        yield process
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise


def _interrupted_with_parent() -> Callable[[], None]:
    """Return a `preexec_fn` that makes the kernel interrupt the child when this process is killed."""
    return partial(die_with_parent, os.getpid(), signal.SIGINT)


def _copy_until_exit(output: BinaryIO, process: subprocess.Popen[bytes]) -> None:
    """Print what a process writes into a file, until the process exits."""
    position = 0
    while True:
        has_exited = process.poll() is not None
        # Both processes share the file's offset; pread does not move it.
        while piece := os.pread(output.fileno(), 1 << 16, position):
            position += len(piece)
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
        if has_exited:
            return
        time.sleep(POLL_S)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def _environ() -> dict[str, str]:
    """Return this process's environment with bytecode caching: tests start hundreds of Python processes."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def main(arguments: Sequence[str]) -> int:
    """Run the tests and return the exit status."""
    in_two = arguments[0] == "--in-two"
    marker, *pytest_arguments = arguments[in_two:]
    is_complete = in_two and not pytest_arguments
    status = run_two(marker, COMPUTE_TESTS) if is_complete and _num_cores() > 1 else run_one(marker, pytest_arguments)
    if is_complete and marker.startswith("not full") and has_avx512():
        status = status or run_kernel_tests_as_avx2(marker)
    if status == NONE_COLLECTED:
        print(f'no test has the marker "{marker}"')
        return 0
    return status


def exit_on_sigterm(_number: int, _frame: object) -> None:
    """Exit so that child processes are interrupted and waited for."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, exit_on_sigterm)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
