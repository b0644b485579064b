"""Enrollment of nodes: one-time join tokens, and the public keys of the nodes that have joined.

A join token is stored as a hash. It is used up in the transaction that stores the key of the node.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from tenants.change_context import ChangeContext
from tenants.tables import node_join_tokens, node_keys

TOKEN_PREFIX = "hearth-join-"  # noqa: S105 - not a secret
KEPT = timedelta(days=7)  # after which expired tokens are removed


class JoinTokenInvalid(Exception):
    """The join token cannot be used. The text is for the operator and does not contain the token."""


@dataclass(frozen=True)
class JoinToken:
    """Permission of a join token: enroll a node in a PoP, and only the node `node_id` unless it is ""."""

    pop: str
    node_id: str


@dataclass(frozen=True)
class NodeKey:
    """The public key of an enrolled node, as in the key ring. Times are Unix times in whole seconds."""

    kid: str
    subject: str
    public: str
    not_before: int
    not_after: int
    pop: str


async def create_token(
    database: Database, *, pop: str, node_id: str, life: timedelta, context: ChangeContext
) -> tuple[str, datetime]:
    """Create a join token. Return its text, which is not stored, and when it expires."""
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    now = context.clock.now()
    row = {"pop": pop, "node_id": node_id, "created_at": now, "expires_at": now + life}
    async with database.transaction() as connection:
        await connection.execute(delete(node_join_tokens).where(node_join_tokens.c.expires_at < now - KEPT))
        await connection.execute(insert(node_join_tokens).values(digest=_digest(secret), **row))
        await context.record(connection, "node.token", "", node_id[:64], pop)
    return secret, now + life


async def check_token(database: Database, secret: str, now: datetime) -> None:
    """Raise JoinTokenInvalid if a join token cannot be used, without occupying SQLite's single writer."""
    async with database.connection() as connection:
        if (await connection.execute(select(node_join_tokens.c.pop).where(_is_usable(secret, now)))).first() is None:
            raise _invalid_token()


async def use_token(connection: AsyncConnection, secret: str, now: datetime) -> JoinToken:
    """Use up a join token within the caller's transaction. Raises JoinTokenInvalid."""
    used = update(node_join_tokens).where(_is_usable(secret, now)).values(used_at=now)
    if not (await connection.execute(used)).rowcount:
        raise _invalid_token()
    found = select(node_join_tokens).where(node_join_tokens.c.digest == _digest(secret))
    row = (await connection.execute(found)).one()
    return JoinToken(row.pop, row.node_id)


async def add_key(connection: AsyncConnection, key: NodeKey) -> None:
    """Store the key of an enrolled node within the caller's transaction."""
    await connection.execute(insert(node_keys).values(**vars(key)))


async def find_keys(database: Database, now_s: float) -> list[NodeKey]:
    """Return the keys of enrolled nodes that have not expired."""
    async with database.connection() as connection:
        rows = await connection.execute(select(node_keys).where(node_keys.c.not_after > int(now_s)))
        return [NodeKey(row.kid, row.subject, row.public, row.not_before, row.not_after, row.pop) for row in rows]


def _is_usable(secret: str, now: datetime) -> ColumnElement[bool]:
    table = node_join_tokens.c
    return and_(table.digest == _digest(secret), table.used_at.is_(None), table.expires_at > now)


def _invalid_token() -> JoinTokenInvalid:
    return JoinTokenInvalid(
        "the join token is unknown, was used already, or has expired; create one with `hearth node token`"
    )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()  # the secret has 256 random bits and needs no slow hash
