"""`/nodes` and `/pops`: the fleet for platform roles; drain nodes and whole PoPs, and load, unload, pin and unpin
models on nodes.

A gateway passes a change to the node over their connection; the node's next status shows its effect.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from engine.protocol.wire import ManageAction
from gateway.errors import Reason, Refusal
from gateway.management.endpoint import ManagementRequest, existing, invalid, respond, takes_body
from gateway.model_names import find_model
from gateway.nodes.connections import NodeLost, NodeRefused
from gateway.nodes.fleet import NodeReport, PopReport
from gateway.nodes.link import Link
from gateway.openapi.operation import describe
from gateway.services import Services

MANAGE_TIMEOUT_S = 5.0


class ReplicaBody(Struct, frozen=True):
    """The model to load or pin."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]


class PopChange(Struct, frozen=True):
    """The nodes of a PoP that a change has reached, and the errors of the others by node."""

    pop: str
    changed: tuple[str, ...]
    errors: dict[str, str]


@describe(result=list[NodeReport])
async def list_nodes(services: Services, _request: ManagementRequest) -> Response:
    """List all nodes with their replicas. Includes nodes that have left within five minutes."""
    return respond(services.fleet.encoded_nodes())


@describe(result=list[PopReport])
async def list_pops(services: Services, _request: ManagementRequest) -> Response:
    """List all PoPs with their coordinates, number of nodes and round trips."""
    return respond(services.fleet.pops())


@describe(result=NodeReport)
async def drain(services: Services, request: ManagementRequest) -> Response:
    """Drain a node. Running calls finish, and new calls go to other nodes until the node is undrained or restarted."""
    return await _manage(services, request, "drain")


@describe(result=NodeReport)
async def undrain(services: Services, request: ManagementRequest) -> Response:
    """Undrain a node. The node accepts calls again."""
    return await _manage(services, request, "undrain")


@describe(result=NodeReport)
@takes_body(ReplicaBody)
async def load(services: Services, request: ManagementRequest, body: ReplicaBody) -> Response:
    """Load a model on a node. Loading continues in the background; the list of nodes shows its progress."""
    return await _manage(services, request, "load", body.model)


@describe(result=NodeReport)
async def unload(services: Services, request: ManagementRequest) -> Response:
    """Unload a model from a node. Running calls finish first. A later call loads the model again."""
    return await _manage(services, request, "unload", request.path_params["model"])


@describe(result=NodeReport)
@takes_body(ReplicaBody)
async def pin(services: Services, request: ManagementRequest, body: ReplicaBody) -> Response:
    """Pin a model on a node. The model is loaded, and not evicted for other models until it is unpinned or the node
    restarts."""
    return await _manage(services, request, "pin", body.model)


@describe(result=NodeReport)
async def unpin(services: Services, request: ManagementRequest) -> Response:
    """Unpin a model on a node. The model stays loaded until its memory is needed."""
    return await _manage(services, request, "unpin", request.path_params["model"])


@describe(result=PopChange)
async def drain_pop(services: Services, request: ManagementRequest) -> Response:
    """Drain all nodes of a PoP. Running calls finish, and new calls and sessions go to other PoPs."""
    return await _manage_pop(services, request, "drain")


@describe(result=PopChange)
async def undrain_pop(services: Services, request: ManagementRequest) -> Response:
    """Undrain all nodes of a PoP. Sessions return to them."""
    return await _manage_pop(services, request, "undrain")


async def _manage_pop(services: Services, request: ManagementRequest, action: Literal["drain", "undrain"]) -> Response:
    """Pass a change to all nodes of the PoP, record it in the audit log, and respond with the nodes. Raises Refusal."""
    pop = str(request.path_params["pop"])
    nodes = [
        (known.status.node_id, known.link)
        for known in services.nodes.known_nodes()
        if known.status.pop == pop and known.link is not None and known.status.version
    ]
    existing(nodes or None)
    async with services.database.transaction() as connection:
        await request.change_context.record(connection, f"pop.{action}", "", pop[:64], "")
    outcomes = await asyncio.gather(*(_outcome(link, action) for _, link in nodes))
    found = {node_id: error for (node_id, _), error in zip(nodes, outcomes, strict=True)}
    changed = tuple(node_id for node_id, error in found.items() if not error)
    return respond(PopChange(pop, changed, {node_id: error for node_id, error in found.items() if error}))


async def _outcome(link: Link, action: ManageAction) -> str:
    """Pass a change to a node, and return its error, or "" for success."""
    try:
        await link.manage(action, "", MANAGE_TIMEOUT_S)
    except NodeRefused as error:
        return str(error)
    except (NodeLost, TimeoutError):
        return "the node does not respond"
    return ""


async def _manage(services: Services, request: ManagementRequest, action: ManageAction, model: str = "") -> Response:
    """Pass a change to the node, record it in the audit log, and respond with the node. Raises Refusal."""
    node_id = str(request.path_params["node_id"])
    known = existing(services.nodes.find(node_id))
    name = (await find_model(services.registry, model)).card.name if model else ""
    if known.link is None or not known.status.version:
        reason = "has left" if known.link is None else "runs an older version that cannot be managed by gateways"
        raise invalid(f"node {node_id} {reason}")
    if action not in known.status.actions:
        raise invalid(f"node {node_id} runs an older version that cannot {action} models")
    # Recorded first, so that no change is missing from the audit log.
    async with services.database.transaction() as connection:
        await request.change_context.record(connection, f"node.{action}", "", node_id[:64], name)
    await _send(known.link, action, name)
    return respond(existing(services.fleet.node(node_id)))


async def _send(link: Link, action: ManageAction, model: str) -> None:
    try:
        await link.manage(action, model, MANAGE_TIMEOUT_S)
    except NodeRefused as error:
        raise invalid(f"node {link.node_id}: {error}") from None
    except (NodeLost, TimeoutError):
        raise Refusal(Reason.DEPENDENCY_DOWN) from None
