"""Ports for servers that must be told theirs before they listen.

From below those that the kernel hands out by itself: one of these may go to another test's connection in the seconds
that a platform takes to start, or in those in which one that was killed comes back.
"""

from __future__ import annotations

import errno
import random
import socket

_CHOICE = range(20_000, 32_000)
_random = random.SystemRandom()  # not what a test may have seeded: two processes would choose alike


def free_port() -> int:
    """One of 127.0.0.1 that nobody listens on."""
    while True:
        port = _random.choice(_CHOICE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
