"""The key ring file and the private key files beside it: create, read, change, rotate and revoke service keys.

The ring holds public keys only, but a user who can write the ring can add a trusted service. A ring that other users
can write, or a private key that they can read, is rejected. Private keys are PEM files named by key id, in one folder
per service.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from service_identity.service_tokens import LEEWAY_S, MAX_LIFE_S, KnownKeys, PublicKey, Ring, parse_subject

MAX_RING_BYTES = 1 << 20
_MAX_KEY_BYTES = 4096
_DAY_S = 86400


class UnsafeKeyFile(Exception):
    """A key file cannot be trusted. The text is one line for the operator and contains no key."""


def read_ring(path: Path) -> KnownKeys:
    """Read and validate the ring. Raises UnsafeKeyFile."""
    content = _read(path, MAX_RING_BYTES, forbidden=0o022)
    try:
        return KnownKeys(msgspec.json.decode(content, type=Ring))
    except (msgspec.DecodeError, ValueError) as error:
        raise UnsafeKeyFile(f"{path} is not a valid ring of service keys: {error}") from None


def read_private_keys(folder: Path) -> dict[str, Ed25519PrivateKey]:
    """Read every private key of a service's folder, by key id. Raises UnsafeKeyFile."""
    try:
        files = sorted(folder.glob("*.pem"))
        found = [_read_private_key(file) for file in files]
    except OSError as error:
        raise UnsafeKeyFile(f"{folder}: {error.strerror}") from None
    return {key_id(private): private for private in found}


def key_id(private: Ed25519PrivateKey) -> str:
    """Return a key's id: the first 32 hexadecimal digits of the SHA-256 of its public key."""
    return _id_of(private.public_key().public_bytes_raw())


def generate() -> Ed25519PrivateKey:
    """Generate a private key."""
    return Ed25519PrivateKey.generate()


def public_half(private: Ed25519PrivateKey) -> str:
    """Return the public key as 64 hexadecimal digits."""
    return private.public_key().public_bytes_raw().hex()


def public_key(public: str, subject: str, *, start_s: float, life_days: int, pop: str = "") -> PublicKey:
    """Return a key's entry for the ring. Raises ValueError."""
    kind, _ = parse_subject(subject)
    if pop and kind != "node":
        raise ValueError("only the key of a node can be bound to a PoP")
    if not re.fullmatch("[0-9A-Fa-f]{64}", public):
        raise ValueError(f"a public key must be 64 hexadecimal digits (got {public!r})")
    start = int(start_s)
    return PublicKey(_id_of(bytes.fromhex(public)), subject, public.lower(), start, start + life_days * _DAY_S, pop)


def folder_of(keys: Path, subject: str) -> Path:
    """Return the folder of a service's private keys."""
    return keys / "-".join(parse_subject(subject))


def write_private_key(folder: Path, private: Ed25519PrivateKey) -> Path:
    """Write a private key to its service's folder with mode 0600. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{key_id(private)}.pem"
    content = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with _replacing(path, 0o600) as temporary:
        temporary.write_bytes(content)
    return path


def change_ring(path: Path, change: Callable[[Ring], Ring], *, now_s: float) -> Ring:
    """Change the ring under a lock, creating it if it does not exist. Drops token revocations older than any token's
    lifetime. Raises UnsafeKeyFile, OSError, and what `change` raises."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ring = read_ring(path).ring if path.exists() else Ring(issuer=f"hearth-{secrets.token_hex(8)}")
        changed = change(ring)
        horizon_s = now_s - MAX_LIFE_S - 2 * LEEWAY_S
        tokens = {jti: at for jti, at in changed.revoked_tokens.items() if at > horizon_s}
        changed = replace(changed, revoked_tokens=tokens)
        KnownKeys(changed)
        with _replacing(path, 0o644) as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n")
    return changed


def with_key(ring: Ring, key: PublicKey) -> Ring:
    """Return the ring with one more key. Raises ValueError if its subject is revoked or the key exists."""
    if key.subject in ring.revoked_subjects:
        raise ValueError(f"{key.subject} is revoked; reinstate it first")
    if any(known.kid == key.kid for known in ring.keys):
        raise ValueError(f"the ring already has the key {key.kid}")
    return replace(ring, keys=(*ring.keys, key))


def rotated(ring: Ring, key: PublicKey, *, overlap_s: int) -> Ring:
    """Return the ring with a new key for its subject, whose other keys expire `overlap_s` after the new key starts.
    Raises ValueError."""
    last = key.not_before + overlap_s
    keys = tuple(
        replace(known, not_after=min(known.not_after, last)) if known.subject == key.subject else known
        for known in ring.keys
    )
    return with_key(replace(ring, keys=keys), key)


def newest_key(keys: Sequence[PublicKey]) -> PublicKey:
    """Return the newest key; of keys that start in the same second, the last in the ring's order."""
    return max(reversed(keys), key=lambda key: key.not_before)


def status_of(key: PublicKey, ring: Ring, now_s: float) -> str:
    """Return "revoked", "expired", "active" or "not yet"."""
    if key.revoked_at or key.subject in ring.revoked_subjects:
        return "revoked"
    if now_s >= key.not_after:
        return "expired"
    return "active" if now_s >= key.not_before else "not yet"


def with_key_revoked(ring: Ring, kid: str, *, now_s: float) -> Ring:
    """Return the ring with a key revoked. Raises ValueError if there is no such key."""
    if all(key.kid != kid for key in ring.keys):
        raise ValueError(f"the ring has no key {kid}")
    keys = (replace(key, revoked_at=key.revoked_at or int(now_s)) if key.kid == kid else key for key in ring.keys)
    return replace(ring, keys=tuple(keys))


def with_subject_revoked(ring: Ring, subject: str, *, now_s: float) -> Ring:
    """Return the ring with a service and all its keys revoked. The keys stay revoked when the service is reinstated."""
    parse_subject(subject)
    keys = (replace(k, revoked_at=k.revoked_at or int(now_s)) if k.subject == subject else k for k in ring.keys)
    return replace(ring, keys=tuple(keys), revoked_subjects={**ring.revoked_subjects, subject: int(now_s)})


def with_subject_reinstated(ring: Ring, subject: str) -> Ring:
    """Return the ring with a service reinstated. Raises ValueError if it is not revoked."""
    if subject not in ring.revoked_subjects:
        raise ValueError(f"{subject} is not revoked")
    return replace(ring, revoked_subjects={name: at for name, at in ring.revoked_subjects.items() if name != subject})


def with_token_revoked(ring: Ring, jti: str, *, now_s: float) -> Ring:
    return replace(ring, revoked_tokens={**ring.revoked_tokens, jti: int(now_s)})


def _read_private_key(path: Path) -> Ed25519PrivateKey:
    content = _read(path, _MAX_KEY_BYTES, forbidden=0o077)
    try:
        private = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UnsafeKeyFile(f"{path} must be a private key in PEM format without a password") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise UnsafeKeyFile(f"{path} must be an Ed25519 key")
    return private


def _read(path: Path, max_bytes: int, *, forbidden: int) -> bytes:
    """Return a file's content. Raises UnsafeKeyFile unless this user or root owns the file and its mode is safe."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
                raise UnsafeKeyFile(f"{path} must be a file owned by this user or by root")
            if found.st_mode & forbidden:
                mode = 0o600 if forbidden & 0o044 else 0o644
                raise UnsafeKeyFile(f"{path} is accessible to other users; set its mode to {mode:o}")
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UnsafeKeyFile(f"{path}: {error.strerror}") from None
    if len(content) > max_bytes:
        raise UnsafeKeyFile(f"{path} must have at most {max_bytes} bytes")
    return content


@contextlib.contextmanager
def _replacing(path: Path, mode: int) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` once it is complete and on disk."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 600
    temporary = Path(name)
    try:
        yield temporary
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
        temporary.replace(path)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def _id_of(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()[:32]
