"""`/nodes/enroll` and `/nodes/ring`: a node joins with a one-time token, and reads the key ring afterwards.

A joining node sends its public key; its private key never leaves its machine. The responses contain public keys only.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from sqlalchemy.exc import IntegrityError
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management.endpoint import ManagementRequest, invalid, respond, takes_body
from gateway.openapi.operation import describe
from gateway.services import Services
from service_identity import key_ring
from service_identity.service_tokens import Ring
from tenants.change_context import ChangeContext
from tenants.node_enrollment import JoinToken, JoinTokenInvalid, NodeKey, add_key, check_token, use_token

KEY_DAYS = 365

_NODE_ID = r"^[A-Za-z0-9._-]{1,64}$"


class EnrollBody(Struct, frozen=True):
    """A node that joins. `public_key` is its Ed25519 public key."""

    token: Annotated[str, Meta(min_length=1, max_length=256)]
    node_id: Annotated[str, Meta(pattern=_NODE_ID)]
    pop: Annotated[str, Meta(pattern=_NODE_ID)]
    public_key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class RingBody(Struct, frozen=True):
    """A service token of a node, for the audience `gateway/ring`."""

    token: Annotated[str, Meta(min_length=1, max_length=1024)]


class RingReport(Struct, frozen=True):
    """The key ring. `time_s` is the gateway's clock in Unix seconds."""

    time_s: float
    ring: dict[str, Any]


@describe(result=RingReport)
@takes_body(EnrollBody)
async def enroll(services: Services, _request: ManagementRequest, body: EnrollBody) -> Response:
    """Enroll a node. Uses up the join token, and adds the node's public key to the key ring of every gateway."""
    now = services.clock.now()
    key = _key_of(body, now.timestamp())
    try:
        await check_token(services.database, body.token, now)
        ring = await _read_ring(services)
        async with services.database.transaction() as connection:
            _check(body, await use_token(connection, body.token, now), ring, now.timestamp())
            await add_key(connection, key)
            context = ChangeContext("node", services.clock)
            await context.record(connection, "node.enroll", "", body.node_id, f"{body.pop} {key.kid}")
    except JoinTokenInvalid as error:
        raise invalid(str(error)) from None
    except IntegrityError:
        raise invalid("public_key is used by another node") from None
    try:
        await services.enrolled_keys.add([key])
    except (OSError, key_ring.UnsafeKeyFile):
        raise Refusal(Reason.DEPENDENCY_DOWN) from None
    return _respond(await _read_ring(services))


@describe(result=RingReport)
@takes_body(RingBody)
async def read_ring(services: Services, _request: ManagementRequest, body: RingBody) -> Response:
    """Return the key ring to a node that authenticates with a service token."""
    if not services.enrolled_keys.is_node(body.token):
        raise Refusal(Reason.CREDENTIAL_REFUSED)
    return _respond(await _read_ring(services))


async def _read_ring(services: Services) -> Ring:
    try:
        return await services.enrolled_keys.read()
    except key_ring.UnsafeKeyFile:
        raise Refusal(Reason.DEPENDENCY_DOWN) from None


def _respond(ring: Ring) -> Response:
    return respond(RingReport(time.time(), msgspec.to_builtins(ring)))


def _key_of(body: EnrollBody, now_s: float) -> NodeKey:
    subject = f"node/{body.node_id}"
    row = key_ring.public_key(body.public_key, subject, start_s=now_s, life_days=KEY_DAYS, pop=body.pop)
    return NodeKey(row.kid, row.subject, row.public, row.not_before, row.not_after, row.pop)


def _check(body: EnrollBody, token: JoinToken, ring: Ring, now_s: float) -> None:
    """Raise Refusal unless the token allows this node, and no other node has its id."""
    subject = f"node/{body.node_id}"
    if token.pop != body.pop:
        raise invalid(f"the join token is for the PoP {token.pop}, and the node's HEARTH_POP is {body.pop}")
    if token.node_id not in ("", body.node_id):
        raise invalid(
            f"the join token is for the node {token.node_id}, and the node's HEARTH_NODE_ID is {body.node_id}"
        )
    if subject in ring.revoked_subjects:
        raise invalid(f"the service {subject} is revoked; run `hearth service reinstate {subject}` first")
    is_taken = any(key.subject == subject and key_ring.status_of(key, ring, now_s) == "active" for key in ring.keys)
    if is_taken and not token.node_id:
        raise invalid(
            f"another node has the id {body.node_id}; choose another HEARTH_NODE_ID, or, for a new key of the same "
            f"node, create the token with `hearth node token --node {body.node_id}`"
        )
