"""Coalesced writes to a socket: everything written during one turn of the event loop leaves in one system call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class CoalescingWriter:
    """Buffers writes to `transport` until the current turn of the event loop ends, or `max_pending` writes wait.

    Set `transport` when the connection is made. Data for a closing transport is discarded. `on_written` is called after
    each write to the transport.
    """

    def __init__(self, *, max_pending: int = 1 << 30, on_written: Callable[[], None] | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._max_pending = max_pending
        self._on_written = on_written
        self._pending: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pending:
            self._loop.call_soon(self.flush)
        self._pending.append(data)
        if len(self._pending) >= self._max_pending:
            self.flush()

    def flush(self) -> None:
        """Write everything that is buffered now."""
        data, self._pending = self._pending, []
        if not data or self.transport is None or self.transport.is_closing():
            return
        self.transport.write(data[0] if len(data) == 1 else b"".join(data))
        if self._on_written is not None:
            self._on_written()
