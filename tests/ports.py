"""Free ports for servers whose port must be known before they listen.

The ports are below the kernel's ephemeral range: a port in that range could be given to another connection before the
server listens, or while a killed server restarts.
"""

from __future__ import annotations

import errno
import random
import socket

_CHOICE = range(20_000, 32_000)
_random = random.SystemRandom()  # not the seeded generator, from which two test processes would draw the same ports


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens."""
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
