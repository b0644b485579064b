"""Progress of `hearth up` on standard error: a spinner below finished steps on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class Progress:
    """A context manager that prints steps and notes. Standard output is left to the result."""

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
        self.pause()

    def step(self, text: str) -> None:
        """Show what the command waits for now. Shown on a terminal only."""
        if self._status is not None:
            self._status.update(text)

    def done(self, text: str) -> None:
        """Print a finished step with the seconds since the start or since `restart_clock`."""
        self._line(f"{text} ({time.monotonic() - self._started:.1f} s)", "green", "✓")

    def restart_clock(self) -> None:
        """Measure the time of later steps from now."""
        self._started = time.monotonic()

    def note(self, text: str) -> None:
        """Print an event that the user should know of."""
        self._line(text, "yellow", "!")

    def pause(self) -> None:
        """Stop the spinner. Later steps and notes are still printed."""
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
