"""Heads of the audit hash chain recorded outside the database, and verification of the chain against them.

An attacker who can rewrite the whole database can compute a consistent chain, but not one that matches heads recorded
earlier: each recorded head carries an HMAC under a key that no store contains.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from storage.database import Database
from tenants.audit import audit_log as audit
from tenants.audit.audit_log import NO_DIGEST, Head

_PURPOSE = b"hearth audit head 1"
_MAX_PROBLEMS = 20


class NotedHead(Struct, frozen=True):
    """One line of a heads file. `digest` and `proof` are hexadecimal."""

    at: datetime
    sequence: int
    digest: str
    proof: str

    def is_proven(self, key: bytes) -> bool:
        try:
            expected = _proof(key, self.at, Head(self.sequence, bytes.fromhex(self.digest)))
        except (ValueError, OverflowError):
            return False
        return hmac.compare_digest(expected, self.proof)


@dataclass(frozen=True)
class Verified:
    """The result of a verification. `problems` are sentences; empty if nothing is wrong."""

    num_entries: int
    head: Head
    num_heads: int
    problems: list[str] = field(default_factory=list)


def key_from(pepper: bytes) -> bytes:
    """Derive the key of the heads' HMACs from the token pepper."""
    return hmac.digest(pepper, b"the key of audit heads", "sha256")


def note(head: Head, at: datetime, key: bytes) -> bytes:
    """Return a line to append to a heads file."""
    noted = NotedHead(at, head.sequence, head.digest.hex(), _proof(key, at, head))
    return msgspec.json.encode(noted) + b"\n"


def read_notes(path: Path) -> list[NotedHead]:
    """Return every line of a heads file; empty if there is no file. Raises ValueError for an invalid line, except for
    a last line that was cut short."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(line, type=NotedHead))
        except (msgspec.MsgspecError, ValueError):
            if number < len(lines) or line.endswith(b"\n"):
                raise ValueError(f"line {number} of {path} is no head of an audit chain") from None
    return found


async def verify(database: Database, noted: list[NotedHead] | None = None, key: bytes = b"") -> Verified:
    """Verify the whole chain and, if given, that it contains the recorded heads, whose HMACs are under `key`."""
    problems: list[str] = []
    first_head = await audit.read_head(database)  # entries written while we look come after it
    expected = _expected(noted or [], key, problems)
    if first_head.sequence:
        expected.setdefault(first_head.sequence, set()).add((first_head.digest, "the head in the database"))
    previous, place = NO_DIGEST, 0
    async for entry in audit.read_chain(database):
        if entry.sequence != place + 1:
            problems.append(f"entries {place + 1} to {entry.sequence - 1} are missing")
        elif entry.digest != audit.digest_of(entry, previous):
            problems.append(f"entry {entry.sequence} ({entry.action}) is not what was written")
        previous, place = entry.digest, entry.sequence
        for digest, where in expected.pop(place, ()):
            if digest != previous:
                problems.append(f"entry {place} is not the one that {where} names")
        if len(problems) > _MAX_PROBLEMS:
            problems.append("and perhaps more")
            break
    else:
        for sequence, heads in sorted(expected.items()):
            problems += [f"entry {sequence} is missing, which {where} names" for _, where in sorted(heads)]
    return Verified(place, Head(place, previous), len(noted or []), problems)


def _expected(noted: list[NotedHead], key: bytes, problems: list[str]) -> dict[int, set[tuple[bytes, str]]]:
    """Return the expected digests by sequence number, each with where it was recorded."""
    expected: dict[int, set[tuple[bytes, str]]] = {}
    for number, head in enumerate(noted, 1):
        if not head.is_proven(key):
            problems.append(f"noted head {number} was not written with this platform's key")
        elif head.sequence:
            where = f"the head noted at {head.at.astimezone(UTC).isoformat(timespec='seconds')}"
            expected.setdefault(head.sequence, set()).add((bytes.fromhex(head.digest), where))
    return expected


def _proof(key: bytes, at: datetime, head: Head) -> str:
    time = at.astimezone(UTC).isoformat(timespec="microseconds").encode()
    parts = b"".join(len(part).to_bytes(4, "big") + part for part in (_PURPOSE, time, head.digest))
    return hmac.digest(key, parts + head.sequence.to_bytes(8, "big"), "sha256").hex()
