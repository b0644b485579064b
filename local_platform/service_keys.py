"""Service keys of a local platform: created at start if missing, renewed before they expire."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from local_platform.errors import PlatformError

if TYPE_CHECKING:
    from service_identity.service_tokens import PublicKey, Ring

LIFE_DAYS = 365
_RENEW_BEFORE_S = 30 * 86400


def keys_path(ring: Path) -> Path:
    """Return the folder of the private keys that belong to a key ring file."""
    return ring.parent / "keys"


def create_key(ring: Path, subject: str, pop: str, life_days: int, *, start_s: float) -> tuple[Path, PublicKey]:
    """Create a private key. Return its file and its public key, which the caller adds to the ring.

    Raises ValueError if the subject is invalid or revoked, OSError, and UnsafeKeyFile if the ring cannot be trusted.
    """
    from service_identity import key_ring as service_ring

    private = service_ring.generate()
    row = service_ring.public_key(
        service_ring.public_half(private), subject, start_s=start_s, life_days=life_days, pop=pop
    )
    if ring.exists() and subject in service_ring.read_ring(ring).ring.revoked_subjects:
        raise ValueError(f"{subject} is revoked: run `hearth service reinstate {subject}` first")
    return service_ring.write_private_key(service_ring.folder_of(keys_path(ring), subject), private), row


def ensure_key(
    ring: Path, subject: str, pop: str, change: Callable[[str, Callable[[Ring], Ring]], None] | None = None
) -> Path:
    """Return the folder of a service's private keys, with at least one key that is valid for another 30 days.

    `subject` is `gateway/NAME` or `node/NODE_ID`; `pop` is the node's PoP, or empty. If a new key is needed, the ring
    file is changed directly, or through `change(key_id, change_of_ring)` if given.

    Raises PlatformError if the service is revoked or its files cannot be read or written.
    """
    from service_identity import key_ring as service_ring

    now_s = time.time()
    try:
        folder = service_ring.folder_of(keys_path(ring), subject)
        if ring.exists():
            known = service_ring.read_ring(ring)
            if subject in known.ring.revoked_subjects:
                raise PlatformError(f"{subject} is revoked: run `hearth service reinstate {subject}` to allow it again")
            private_keys = service_ring.read_private_keys(folder) if folder.exists() else {}
            found = [key for kid in private_keys if (key := known.find(kid)) is not None and key.subject == subject]
            if any(key.is_usable(now_s + _RENEW_BEFORE_S) and key.pop == pop for key in found):
                return folder
        _, row = create_key(ring, subject, pop, LIFE_DAYS, start_s=now_s)
        rotated: Callable[[Ring], Ring] = lambda old: service_ring.rotated(old, row, overlap_s=0)  # noqa: E731
        if change is not None:
            change(row.kid, rotated)
        else:
            service_ring.change_ring(ring, rotated, now_s=now_s)
    except (service_ring.UnsafeKeyFile, OSError, ValueError) as error:
        raise PlatformError(f"service keys: {error}") from None
    return folder
