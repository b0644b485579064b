"""Browser sessions of signed-in people. Sessions are opaque and server-side, and end immediately when closed.

The cookie is a random id with a signature, so an invented cookie never reaches the store. The stored entry is keyed by
a hash of the id and is signed: an attacker who can read the store cannot sign in, and an attacker who can write to the
store cannot assign a role. A session ends after 30 minutes without use, after 12 hours, or when the store loses the
session.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from storage.ephemeral import Ephemeral
from telemetry.clock import SYSTEM_CLOCK, Clock
from tenants.credentials.roles import Role

IDLE_S = 30 * 60.0
LIFE_S = 12 * 3600.0
_TOUCH_EACH_S = 60.0  # minimum interval between writes of a session in use
_COOKIE = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})")
_PREFIX = "web-session:"


class SessionOwner(Struct, frozen=True):
    """The person of a session: a user (`user_id`), or an operator of an OpenID provider, whose name and role are those
    of the sign-in. `generation` is the user's `session_generation` at the sign-in."""

    operator_id: str = ""
    name: str = ""
    email: str = ""
    role: Role | None = None
    user_id: str = ""
    generation: int = 0

    @property
    def actor(self) -> str:
        """The person's id in the audit log."""
        return self.user_id or self.operator_id


class _Stored(Struct, frozen=True):
    owner: SessionOwner
    began_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class WebSession:
    """A signed-in person. `csrf_token` is known only to the session's own pages."""

    owner: SessionOwner
    csrf_token: str
    ends_at: datetime


class WebSessions:
    def __init__(self, ephemeral: Ephemeral, secret: bytes, clock: Clock = SYSTEM_CLOCK) -> None:
        """Create the session store. All gateways of a platform must use the same `secret`."""
        self._ephemeral = ephemeral
        self._key = hmac.digest(secret, b"hearth web sessions 2", "sha256")
        self._clock = clock

    async def open(self, owner: SessionOwner) -> str:
        """Create a session and return its cookie. Raises StoreUnavailable."""
        id_, now_s = secrets.token_hex(32), self._now_s()
        await self._write(id_, _Stored(owner, now_s, now_s))
        return f"{id_}.{self._signature('cookie', id_)}"

    async def find(self, cookie: str) -> WebSession | None:
        """Return the cookie's session and extend the session's idle time. Returns None if there is no such session.
        Raises StoreUnavailable."""
        id_ = self._id_in(cookie)
        signed_content = None if id_ is None else await self._ephemeral.get(self._redis_key(id_))
        stored = None if id_ is None or signed_content is None else self._opened(id_, signed_content)
        if id_ is None or stored is None:
            return None
        now_s = self._now_s()
        if not (now_s - stored.seen_s < IDLE_S and now_s - stored.began_s < LIFE_S):
            return None
        if now_s - stored.seen_s >= _TOUCH_EACH_S:
            await self._write(id_, msgspec.structs.replace(stored, seen_s=now_s))
        ends_at = datetime.fromtimestamp(stored.began_s + LIFE_S, UTC)
        return WebSession(stored.owner, self._signature("csrf", id_), ends_at)

    async def close(self, cookie: str) -> None:
        """End the session. Raises StoreUnavailable."""
        id_ = self._id_in(cookie)
        if id_ is not None:
            await self._ephemeral.delete(self._redis_key(id_))

    def _id_in(self, cookie: str) -> str | None:
        match = _COOKIE.fullmatch(cookie)
        if match is None or not hmac.compare_digest(match[2], self._signature("cookie", match[1])):
            return None
        return match[1]

    async def _write(self, id_: str, stored: _Stored) -> None:
        content = msgspec.json.encode(stored)
        signed = self._signature(f"content {self._redis_key(id_)}", content.decode()).encode() + content
        await self._ephemeral.set(self._redis_key(id_), signed, IDLE_S)

    def _opened(self, id_: str, signed_content: bytes) -> _Stored | None:
        signature, content = signed_content[:64], signed_content[64:]
        expected = self._signature(f"content {self._redis_key(id_)}", content.decode("utf-8", "replace"))
        if not hmac.compare_digest(signature, expected.encode()):
            return None
        return msgspec.json.decode(content, type=_Stored)

    def _redis_key(self, id_: str) -> str:
        return _PREFIX + hashlib.sha256(id_.encode()).hexdigest()

    def _signature(self, use: str, text: str) -> str:
        return hmac.digest(self._key, f"{use}: {text}".encode(), "sha256").hex()

    def _now_s(self) -> float:
        return self._clock.now().timestamp()
