"""Memory files for the weights of sleeping models, one per revision, which all ranks of the node with that revision
share (`engine/devices/snapshot.py`).

The files belong to this process and have no name in any folder: their memory is free once this process and the ranks
that use them have ended, however they end.
"""

from __future__ import annotations

import os


class Snapshots:
    """The memory files of this process. Users are any objects."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}  # revision -> file descriptor
        self._users: dict[str, set[object]] = {}

    def open(self, revision: str, user: object) -> str:
        """Return the path of a revision's file, which processes of this machine can open until `close`."""
        if revision not in self._files:
            self._files[revision] = os.memfd_create(f"hearth {revision[:16]}", os.MFD_CLOEXEC)
        self._users.setdefault(revision, set()).add(user)
        return f"/proc/{os.getpid()}/fd/{self._files[revision]}"

    def close(self, revision: str, user: object) -> None:
        """Close a revision's file for a user, and for all after the last one. Does nothing without `open`."""
        users = self._users.get(revision, set())
        users.discard(user)
        if not users and revision in self._files:
            os.close(self._files.pop(revision))
            del self._users[revision]
