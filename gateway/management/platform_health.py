"""`/health`: the state of the stores, gateways and nodes, for platform roles. Works while stores are unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from importlib import metadata
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from gateway.management.endpoint import ManagementRequest, respond
from gateway.nodes.fleet import NodeState
from gateway.openapi.operation import describe
from gateway.services import Services
from storage import migrate
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from tenants.quota.gateway_presence import GatewayInfo, read_gateways

CHECK_TIMEOUT_S = 2.0


class StoreHealth(Struct, frozen=True, kw_only=True):
    """The state of one store. `detail` describes the failure. A store that is not configured is `ok`."""

    ok: bool
    detail: str
    latency_ms: float | None


class DatabaseHealth(StoreHealth, frozen=True, kw_only=True):
    """The state of the database: `migration` is its schema, `expected_migration` that of this version."""

    kind: str
    migration: str | None
    expected_migration: str


class NodeHealth(Struct, frozen=True, kw_only=True):
    """The state of one node."""

    node_id: str
    pop: str
    state: NodeState
    is_reachable: bool
    version: str
    failed_models: list[str]


class PlatformHealth(Struct, frozen=True, kw_only=True):
    """The state of the platform, as this gateway sees it. `problem` says why this gateway cannot serve calls."""

    version: str
    gateway_id: str
    is_ready: bool
    problem: str | None
    database: DatabaseHealth
    redis: StoreHealth
    object_store: StoreHealth
    gateways: list[GatewayInfo]
    nodes: list[NodeHealth]


@describe(result=PlatformHealth)
async def get(services: Services, _request: ManagementRequest) -> Response:
    """Get the state of the database, Redis, the object store, all gateways and all nodes."""
    database, redis, objects, gateways = await asyncio.gather(
        _database(services),
        _check(services.ephemeral.ping()),
        _objects(services),
        _gateways(services.ephemeral),
    )
    problem = services.missing_for_readiness()
    return respond(
        PlatformHealth(
            version=metadata.version("hearth"),
            gateway_id=services.quota.gateway_id,
            is_ready=problem is None,
            problem=problem,
            database=database,
            redis=redis,
            object_store=objects,
            gateways=gateways,
            nodes=_nodes(services),
        )
    )


async def _database(services: Services) -> DatabaseHealth:
    found, revision = await asyncio.gather(_check(services.database.ping()), _revision(services.settings.database_url))
    expected = migrate.head_revision()
    is_old = found.ok and revision != expected
    detail = f"the schema is {revision or 'empty'}, this version needs {expected}: run `hearth migrate`"
    fields = msgspec.structs.asdict(found) | ({"ok": False, "detail": detail} if is_old else {})
    return DatabaseHealth(**fields, kind=services.database.dialect, migration=revision, expected_migration=expected)


async def _revision(database_url: str) -> str | None:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await migrate.current_revision(database_url)
    except (StoreUnavailable, TimeoutError):
        return None


async def _objects(services: Services) -> StoreHealth:
    if not services.settings.objects_url:
        return StoreHealth(ok=True, detail="not configured (OBJECTS_URL)", latency_ms=None)
    return await _check(services.finetunes.objects.ping())


async def _gateways(ephemeral: Ephemeral) -> list[GatewayInfo]:
    try:
        return await read_gateways(ephemeral)
    except StoreUnavailable:
        return []


async def _check(work: Awaitable[Any]) -> StoreHealth:
    """Return the state of a store after a request that it should answer at once."""
    started_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await work
    except StoreUnavailable as error:
        return StoreHealth(ok=False, detail=str(error), latency_ms=None)
    except TimeoutError:
        return StoreHealth(ok=False, detail=f"no response within {CHECK_TIMEOUT_S:g} s", latency_ms=None)
    latency_ms = (asyncio.get_running_loop().time() - started_s) * 1000
    return StoreHealth(ok=True, detail="", latency_ms=round(latency_ms, 2))


def _nodes(services: Services) -> list[NodeHealth]:
    return [
        NodeHealth(
            node_id=known.status.node_id,
            pop=known.status.pop,
            state="gone" if known.is_gone else "draining" if known.status.is_draining else "ready",
            is_reachable=known.is_reachable,
            version=known.status.version,
            failed_models=[each.model for each in known.status.replicas if each.state == "failed"],
        )
        for known in services.nodes.known_nodes()
    ]
