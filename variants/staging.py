"""A temporary folder per quantization, removed at the end and, if the process was killed, by the next one."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

_PREFIX = "hearth-quantize-"


@contextlib.contextmanager
def staging_folder(parent: Path | None) -> Iterator[Path]:
    """Create a folder in `parent` (by default the temporary directory) and remove it at the end, also on SIGTERM.

    Removes folders of processes that no longer run first.
    """
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent or Path(tempfile.gettempdir()))
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        with (
            tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder,
            (Path(folder) / "lock").open("w") as lock,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases the lock when this process ends
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _remove_abandoned(parent: Path) -> None:
    """Remove folders whose lock is free."""
    for lock_path in parent.glob(f"{_PREFIX}*/lock"):
        # The folder may belong to another user, be in use or be disappearing.
        with contextlib.suppress(OSError), lock_path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_path.parent, ignore_errors=True)
