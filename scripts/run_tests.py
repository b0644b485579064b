"""Runs the tests with one marker expression; what was skipped is listed with its reason (pytest's -ra).

With `--in-two` they are shared between two processes where there are two cores: APART runs beside all else. Its files
compute; those of the others mostly wait for processes of their own. A few tests that failed are run once more, alone,
and named if they pass then (docs/decisions/0040). Whoever passes arguments of pytest gets one process and exactly
those. "No test carries this marker" is not a failure: pytest's exit status 5 becomes a sentence and 0.
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

from scripts import failed_tests
from telemetry.child_process import die_with_parent

ROOT = Path(__file__).parent.parent
# Files and folders; whatever is not below one of these runs with the others: nothing is run twice, or not at all.
APART = ("tests/engine", "tests/spark", "tests/catalog", "tests/documents", "tests/telemetry")
# Tests of CPU kernels. On a CPU with AVX-512 `make test` runs them a second time limited to AVX2 instructions.
KERNEL_TESTS = ("tests/engine/kernels", "tests/engine/models/test_packed_weights.py", "tests/variants")
AVX2_ENVIRON = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
SOME_FAILED, NONE_COLLECTED = 1, 5  # pytest's exit statuses
MOST_FILES_AGAIN = 5  # more than that did not fail by chance; one fixture fails all tests of its file
LOOK_S = 0.1
MOST_THREADS = 4  # of each process: models are small here, and a container may have fewer cores than its machine


def shares(apart: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments of pytest for the two processes: all but `apart`, and `apart`, which keeps a cache of its own."""
    return [f"--ignore={path}" for path in apart], ["-o", "cache_dir=.pytest_cache/apart", *apart]


def run_one(marker: str, arguments: Sequence[str]) -> int:
    """One process, in front of this terminal. Gives pytest's exit status."""
    process = subprocess.Popen(_command(marker, arguments), env=_environ(), preexec_fn=_arm())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # it has got it too, and ends as it likes to
            continue
        except SystemExit:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise


def run_all(marker: str, apart: Sequence[str]) -> int:
    """Everything with that marker, and what failed of it again. Gives pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "failed"
        saying = failed_tests.arguments(path)
        status = run_two(marker, apart, saying) if apart else run_one(marker, saying)
        failed = failed_tests.read(path)
    may_be_chance = status == SOME_FAILED and 0 < len({_file_of(test) for test in failed}) <= MOST_FILES_AGAIN
    return run_again(failed) if may_be_chance else status


def run_kernel_tests_as_avx2(marker: str) -> int:
    """Run the kernel tests with torch, oneDNN and the compiled kernels limited to AVX2. Return pytest's exit status."""
    print("\ntests: the kernel tests again, as on a CPU with AVX2 only", flush=True)
    environ = {**_environ(), **AVX2_ENVIRON}
    command = _command(marker, ["-q", "-o", "cache_dir=.pytest_cache/avx2", *KERNEL_TESTS])
    with _started([sys.executable, "-m", "engine.kernels.native.build"], environ) as build:
        build.wait()
    with _started(command, environ) as process:
        return process.wait()


def has_avx512() -> bool:
    try:
        return " avx512f " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def run_again(failed: Sequence[str]) -> int:
    """What failed, once more and beside nothing else; says which of it was chance. Gives pytest's exit status."""
    print(f"\ntests: once more, alone: {' '.join(failed)}", flush=True)
    status = run_one("", ["-o", "cache_dir=.pytest_cache/again", *failed])
    if status == 0:
        print("tests: FAILED ONCE AND PASSED ALONE, each of them a defect:", *failed, sep="\n  ", flush=True)
    return status


def run_two(marker: str, apart: Sequence[str], arguments: Sequence[str] = ()) -> int:
    """Both processes at once, with those arguments; the second's output follows the first's. Gives the worst of their
    exit statuses: that tests failed is less than that a process did."""
    front, beside = ([*arguments, *share] for share in shares(apart))
    environ = {"OMP_NUM_THREADS": str(min(max(1, _num_cores() // 2), MOST_THREADS)), **_environ()}
    with tempfile.TemporaryFile() as output, _started(_command(marker, beside), environ, output) as second:
        print("tests: two processes; what the second one says comes last", flush=True)
        with _started(_command(marker, front), environ) as first:
            statuses = [first.wait()]
        print(f"\ntests: the second process ({' '.join(apart)})", flush=True)
        _copy_until_the_end(output, second)
        statuses.append(second.wait())
    print("tests: " + ", ".join(f"{name} {_meaning(status)}" for name, status in zip(NAMES, statuses, strict=True)))
    failed = [status for status in statuses if status not in (0, NONE_COLLECTED)]
    return next((status for status in failed if status != SOME_FAILED), SOME_FAILED) if failed else min(statuses)


NAMES = ("the first process", "the second")


def _meaning(status: int) -> str:
    return {0: "passed", NONE_COLLECTED: "had nothing to run"}.get(status, f"failed (status {status})")


def _command(marker: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", marker, *arguments]


@contextlib.contextmanager
def _started(
    command: Sequence[str], environ: Mapping[str, str], output: BinaryIO | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that only this one interrupts, and only once; it is then waited for, since it has to clean up."""
    process = subprocess.Popen(
        command,
        env=environ,
        stdout=output,
        stderr=output and subprocess.STDOUT,
        process_group=0,  # Ctrl-C reaches this process alone
        preexec_fn=_arm(),
    )
    try:
        yield process
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise


def _arm() -> Callable[[], None]:
    """For between fork and exec: whoever kills this process interrupts those it started."""
    return partial(die_with_parent, os.getpid(), signal.SIGINT)


def _copy_until_the_end(output: BinaryIO, process: subprocess.Popen[bytes]) -> None:
    """Print what a process wrote and goes on to write into a file, until it ends."""
    position = 0
    while True:
        has_ended = process.poll() is not None
        # The position belongs to this process and that one together: pread leaves it where the writer needs it.
        while piece := os.pread(output.fileno(), 1 << 16, position):
            position += len(piece)
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
        if has_ended:
            return
        time.sleep(LOOK_S)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def _environ() -> dict[str, str]:
    """This process's, but bytecode is kept: the tests start hundreds of processes that import the same modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def main(arguments: Sequence[str]) -> int:
    is_in_two = arguments[0] == "--in-two"
    marker, *of_pytest = arguments[is_in_two:]
    if of_pytest:
        status = run_one(marker, of_pytest)
    else:
        status = run_all(marker, APART if is_in_two and _num_cores() > 1 else ())
        if is_in_two and has_avx512():
            status = status or run_kernel_tests_as_avx2(marker)
    if status == NONE_COLLECTED:
        print(f'no test is marked "{marker}"')
        return 0
    return status


def end(_number: int, _frame: object) -> None:
    """On SIGTERM: as after Ctrl-C."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, end)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
