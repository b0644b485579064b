"""Autoscaler: makes scaling plans, and applies them while this gateway holds the lease in Redis.

Any gateway may hold the lease. The holder asks nodes over their connections to load, unload and pin; a change that
fails is part of the next plan again. Equal inputs give equal plans, so a second holder at the same time repeats the
changes and does no harm. Without Redis, or with autoscaling off, nodes keep what they have.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import msgspec
from msgspec import Struct

from catalog.registry import Registry
from gateway.nodes.connections import NodeLost, NodeRefused
from gateway.nodes.fleet import Fleet
from gateway.nodes.snapshot import Nodes
from gateway.scaling import facts
from gateway.scaling.demand import DemandMeter
from gateway.scaling.inputs import Change, Inputs, Key, Level, Plan
from gateway.scaling.plan import make_plan
from gateway.scaling.settings import ScalingSettings
from storage.database import Database
from storage.ephemeral import Ephemeral
from storage.errors import StoreError
from telemetry import metrics
from telemetry.clock import Clock
from tenants import scaling_rules

log = logging.getLogger(__name__)

LEASE_KEY = "scaling:lease"
RECORD_KEY = "scaling:record"
RECORD_TTL_S = 3600.0
LEASE_PERIODS = 3.0  # intervals after which another gateway takes over from a silent holder
MAX_CHANGES = 100  # changes applied per plan; the next plan has the rest
MANAGE_TIMEOUT_S = 5.0
MAX_RECORDED = 50


class StoredLevel(Struct, frozen=True, array_like=True, gc=False):
    """The level of one model in one PoP, as stored in Redis between plans."""

    model: str
    pop: str
    num_replicas: int
    lower_since_s: float | None
    lower_max: int
    num_guests: int = 0


class Record(Struct, frozen=True, gc=False):
    """The last applied plan, as stored in Redis: who applied it, when (Redis's Unix time), and its changes."""

    holder: str
    at_s: float
    levels: list[StoredLevel]
    changes: list[dict[str, str]]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


@dataclass(frozen=True)
class Autoscaler:
    """The autoscaler of one gateway; `name` must be unique among the gateways."""

    settings: ScalingSettings
    name: str
    clock: Clock
    database: Database
    ephemeral: Ephemeral
    registry: Registry
    nodes: Nodes
    fleet: Fleet
    demand: DemandMeter

    @property
    def is_on(self) -> bool:
        return self.settings.mode == "on"

    async def inputs(self, now_s: float | None = None) -> Inputs:
        """Return the inputs of a plan at this moment. `now_s` is Redis's time, by default the time of this machine.

        Raises StoreError.
        """
        known = self.nodes.known_nodes()
        nodes = facts.nodes_of(known)
        demand = [*await self.demand.read_all(), *facts.backlog_of(known)]
        overrides = await scaling_rules.list_overrides(self.database)
        reservations = await scaling_rules.list_reservations(self.database)
        pops = {each.pop for each in demand} | {each.pop for each in reservations}
        record = await self.record()
        return Inputs(
            now_s=self.clock.now().timestamp() if now_s is None else now_s,
            demand=demand,
            nodes=nodes,
            models=facts.models_of(self.registry.all(), known, self.settings.replica_tokens_per_s),
            neighbors=facts.neighbors_of(self.fleet.pops(), nodes, pops),
            overrides=overrides,
            reservations=reservations,
            levels={} if record is None else _levels_in(record),
            policy=self.settings.policy,
        )

    async def record(self) -> Record | None:
        """Return the last applied plan of any gateway. Raises StoreUnavailable."""
        payload = await self.ephemeral.get(RECORD_KEY)
        if payload is None:
            return None
        try:
            return _decode(payload)
        except msgspec.DecodeError:
            log.warning("the stored scaling levels are unreadable and are ignored")
            return None

    async def run(self) -> None:
        """Make and apply plans until cancelled, while this gateway holds the lease."""
        was_unavailable = False
        while self.is_on:
            try:
                await self.step()
                was_unavailable = False
            except StoreError as error:
                if not was_unavailable:
                    log.warning("no scaling plan: nodes keep what they have", extra={"reason": str(error)})
                was_unavailable = True
            await asyncio.sleep(self.settings.interval_s)

    async def step(self) -> Plan | None:
        """Make and apply one plan. Return None if another gateway holds the lease. Raises StoreError."""
        lease_s = self.settings.interval_s * LEASE_PERIODS
        now_s = await self.ephemeral.take_lease(LEASE_KEY, self.name, lease_s)
        if now_s is None:
            return None
        plan = make_plan(await self.inputs(now_s))
        await self._store(plan, now_s)
        outcomes = await asyncio.gather(*(self._apply(change) for change in plan.changes[:MAX_CHANGES]))
        for (action, outcome), number in Counter(outcomes).items():
            metrics.SCALING_CHANGES.labels(action, outcome).inc(number)
        wanted: Counter[str] = Counter()
        for target in plan.targets:
            wanted[target.model] += target.num_replicas
        for model, number in wanted.items():
            metrics.WANTED_REPLICAS.labels(model).set(number)
        return plan

    async def _store(self, plan: Plan, now_s: float) -> None:
        levels = [
            StoredLevel(model, pop, level.num_replicas, level.lower_since_s, level.lower_max, level.num_guests)
            for (model, pop), level in plan.levels.items()
        ]
        changes = [asdict(change) for change in plan.changes[:MAX_RECORDED]]
        record = Record(self.name, now_s, levels, changes)
        await self.ephemeral.set(RECORD_KEY, _encode(record), RECORD_TTL_S)

    async def _apply(self, change: Change) -> tuple[str, str]:
        """Ask the node for a change. Return the action and its outcome."""
        known = self.nodes.find(change.node_id)
        fields = {"model": change.model, "node_id": change.node_id, "action": change.action, "why": change.reason}
        if known is None or known.link is None:
            return change.action, "lost"
        try:
            await known.link.manage(change.action, change.model, MANAGE_TIMEOUT_S)
        except NodeRefused as error:
            log.warning("scaling change refused by the node", extra=fields | {"reason": str(error)})
            return change.action, "refused"
        except (NodeLost, TimeoutError):
            return change.action, "lost"
        log.info("scaling change begun", extra=fields)
        return change.action, "begun"


def _levels_in(record: Record) -> Mapping[Key, Level]:
    return {
        (each.model, each.pop): Level(each.num_replicas, each.lower_since_s, each.lower_max, each.num_guests)
        for each in record.levels
    }
