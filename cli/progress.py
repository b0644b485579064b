"""How `hearth up` shows where it is: a spinner with finished steps above it on a terminal, plain lines elsewhere.

Goes to standard error: standard output carries only the result.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class Progress:
    """`step` says what is being waited for, `done` and `note` leave a line. Use as a context manager."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._console: Console | None = None
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console

            self._console = Console(stderr=True, highlight=False)
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.rest()

    def step(self, text: str) -> None:
        """What is being waited for now; only a terminal shows it."""
        if self._status is not None:
            self._status.update(text)

    def done(self, text: str) -> None:
        """A step is finished; its line says when, since the start, or since `begin_anew`."""
        self._line(f"{text} ({time.monotonic() - self._started:.1f} s)", "green", "✓")

    def begin_anew(self) -> None:
        """Times are counted from now on."""
        self._started = time.monotonic()

    def note(self, text: str) -> None:
        """Something happened that the person should know."""
        self._line(text, "yellow", "!")

    def rest(self) -> None:
        """Nothing is being waited for: the spinner goes away, later lines still come."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _line(self, text: str, style: str, sign: str) -> None:
        if self._console is None:
            sys.stderr.write(f"hearth: {text}\n")
            sys.stderr.flush()
            return
        from rich.text import Text

        self._console.print(Text.assemble((sign, style), " ", text), soft_wrap=True)
