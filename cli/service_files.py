"""Where a platform's service keys lie, and the keys that a start makes for its own processes where they have none.
Knows no commands."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.output import CommandFailed
from cli.target import Target

if TYPE_CHECKING:
    from service_identity.service_tokens import Ring

LIFE_DAYS = 365
_RENEW_BEFORE_S = 30 * 86400


def ring_path(ring: Path | None, data: Path | None) -> Path:
    """The ring that a command is about: the one given, the environment's, or that of a platform's folder. Raises
    CommandFailed."""
    if ring is not None:
        return ring
    named = os.environ.get("HEARTH_SERVICE_RING", "")
    if named and data is None:
        return Path(named)
    return Path(Target.find(data).require("HEARTH_SERVICE_RING"))


def keys_path(ring: Path) -> Path:
    """Where the private keys are that are made beside this ring."""
    return ring.parent / "keys"


def ensure_key(
    ring: Path, subject: str, place: str, change: Callable[[str, Callable[[Ring], Ring]], None] | None = None
) -> Path:
    """The folder of a service's private keys, one of them good for a month at least. A new key's id and what it does to
    the ring are left to `change`, where given. Raises CommandFailed."""
    from service_identity import key_ring as service_ring

    now_s = time.time()
    try:
        folder = service_ring.folder_of(keys_path(ring), subject)
        if ring.exists():
            known = service_ring.read_ring(ring)
            if subject in known.ring.revoked_subjects:
                raise CommandFailed(f"{subject} is revoked: `hearth service reinstate {subject}` lets it back in")
            held = service_ring.read_private_keys(folder) if folder.exists() else {}
            found = [key for kid in held if (key := known.find(kid)) is not None and key.subject == subject]
            if any(key.is_usable(now_s + _RENEW_BEFORE_S) and key.place == place for key in found):
                return folder
        made = service_ring.generate()
        row = service_ring.public_key(
            service_ring.public_half(made), subject, start_s=now_s, life_days=LIFE_DAYS, place=place
        )
        service_ring.write_private_key(folder, made)
        rotated: Callable[[Ring], Ring] = lambda old: service_ring.rotated(old, row, overlap_s=0)  # noqa: E731
        if change is not None:
            change(row.kid, rotated)
        else:
            service_ring.change_ring(ring, rotated, now_s=now_s)
    except (service_ring.Unsafe, OSError, ValueError) as error:
        raise CommandFailed(f"service keys: {error}") from None
    return folder
