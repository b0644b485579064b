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
    heads = []
    for number, line in enumerate(lines, 1):
        try:
            heads.append(msgspec.json.decode(line, type=NotedHead))
        except (msgspec.MsgspecError, ValueError):
            if number < len(lines) or line.endswith(b"\n"):
                raise ValueError(f"line {number} of {path} is not a head of an audit chain") from None
    return heads


async def verify(database: Database, noted: list[NotedHead] | None = None, key: bytes = b"") -> Verified:
    """Verify the whole chain and, if given, that it contains the recorded heads, whose HMACs are under `key`."""
    problems: list[str] = []
    first_head = await audit.read_head(database)  # entries written during the verification come after this head
    expected = _expected(noted or [], key, problems)
    if first_head.sequence:
        expected.setdefault(first_head.sequence, set()).add((first_head.digest, "the head in the database"))
    previous, position = NO_DIGEST, 0
    async for entry in audit.read_chain(database):
        if entry.sequence != position + 1:
            problems.append(f"entries {position + 1} to {entry.sequence - 1} are missing")
        elif entry.digest != audit.digest_of(entry, previous):
            problems.append(f"entry {entry.sequence} ({entry.action}) was changed")
        previous, position = entry.digest, entry.sequence
        for digest, where in expected.pop(position, ()):
            if digest != previous:
                problems.append(f"entry {position} does not match {where}")
        if len(problems) > _MAX_PROBLEMS:
            problems.append("further entries were not checked")
            break
    else:
        for sequence, heads in sorted(expected.items()):
            problems += [f"entry {sequence} is missing, but is named by {where}" for _, where in sorted(heads)]
    return Verified(position, Head(position, previous), len(noted or []), problems)


def _expected(noted: list[NotedHead], key: bytes, problems: list[str]) -> dict[int, set[tuple[bytes, str]]]:
    """Return the expected digests by sequence number, each with where it was recorded."""
    expected: dict[int, set[tuple[bytes, str]]] = {}
    for number, head in enumerate(noted, 1):
        if not head.is_proven(key):
            problems.append(f"recorded head {number} was not written with this platform's key")
        elif head.sequence:
            where = f"the head recorded at {head.at.astimezone(UTC).isoformat(timespec='seconds')}"
            expected.setdefault(head.sequence, set()).add((bytes.fromhex(head.digest), where))
    return expected


def _proof(key: bytes, at: datetime, head: Head) -> str:
    time = at.astimezone(UTC).isoformat(timespec="microseconds").encode()
    parts = b"".join(len(part).to_bytes(4, "big") + part for part in (_PURPOSE, time, head.digest))
    return hmac.digest(key, parts + head.sequence.to_bytes(8, "big"), "sha256").hex()
