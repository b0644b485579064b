"""`/scaling` and `A/ai/reserved_capacity`: the scaling plan with its reasons, what-if plans, operators' overrides, and
capacity reserved for accounts.

A plan is only shown here; the autoscaler of one gateway applies plans if `HEARTH_SCALING` is on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from gateway.management.endpoint import (
    ManagementRequest,
    change_errors,
    existing,
    invalid,
    respond,
    takes_body,
    takes_query,
)
from gateway.model_names import find_model
from gateway.nodes.known_pops import find_known_pop
from gateway.openapi.operation import describe
from gateway.scaling import what_if as what_ifs
from gateway.scaling.inputs import Change, Plan, Target, Unplaced
from gateway.scaling.plan import make_plan
from gateway.services import Services
from tenants import accounts, scaling_rules
from tenants.scaling_rules import EVERYWHERE, MAX_REPLICAS, MAX_TOKENS_PER_S, Override, Reservation

Replicas = Annotated[int, Meta(ge=0, le=MAX_REPLICAS)]
PopName = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]


class ScalingTarget(Struct, frozen=True):
    """Replicas of a model in a PoP: the planned number, those that are ready or loading, the demand, and the reason."""

    model: str
    pop: str
    num_replicas: int
    num_current: int
    tokens_per_s: float
    reason: str


class ScalingChange(Struct, frozen=True):
    """A change of one node. `action` is load, unload, pin or unpin."""

    action: str
    model: str
    node_id: str
    pop: str
    reason: str


class UnplacedReplicas(Struct, frozen=True):
    """Replicas for which no node has room."""

    model: str
    pop: str
    num_replicas: int
    reason: str


class ScalingPlan(Struct, frozen=True):
    """The plan of this moment. `is_on`: gateways apply plans. `holder` is the gateway that has applied the last plan,
    `applied_at` when; both are null if none has been applied within an hour."""

    is_on: bool
    holder: str | None
    applied_at: datetime | None
    targets: list[ScalingTarget]
    changes: list[ScalingChange]
    unplaced: list[UnplacedReplicas]


class WhatIfQuery(Struct, frozen=True, kw_only=True):
    """Query parameters of a what-if plan: a PoP to lose, or a PoP to add with its number of nodes. A PoP without a
    known code needs coordinates."""

    lose: PopName | None = None
    add: PopName | None = None
    nodes: Annotated[int, Meta(ge=1, le=what_ifs.MAX_ADDED_NODES)] = 2
    latitude: Annotated[float, Meta(ge=-90, le=90)] | None = None
    longitude: Annotated[float, Meta(ge=-180, le=180)] | None = None


class WhatIfDifference(Struct, frozen=True):
    """Replicas of a model in a PoP that differ from the plan of the present."""

    model: str
    pop: str
    num_before: int
    num_after: int
    reason: str


class WhatIfPlan(Struct, frozen=True):
    """The plans' difference with a PoP added or lost, and the replicas that would have no room then."""

    differences: list[WhatIfDifference]
    unplaced: list[UnplacedReplicas]


class OverrideBody(Struct, frozen=True, kw_only=True):
    """The body that sets an override. `pop` null counts the replicas in all PoPs together, `max_replicas` null means no
    limit. Replicas of a pinned model are never evicted."""

    pop: PopName | None = None
    min_replicas: Replicas = 0
    max_replicas: Replicas | None = None
    is_pinned: bool = False


class OverrideResult(OverrideBody, frozen=True, kw_only=True):
    """An override of one model."""

    model: str


class PopQuery(Struct, frozen=True, kw_only=True):
    """Query parameter that names the PoP of a rule; missing for a rule about all PoPs."""

    pop: PopName | None = None


class RequiredPopQuery(Struct, frozen=True, kw_only=True):
    """Query parameter that names the PoP of reserved capacity."""

    pop: PopName


class ReservationBody(Struct, frozen=True, kw_only=True):
    """The body that reserves capacity in a PoP, in tokens per second."""

    pop: PopName
    tokens_per_s: Annotated[float, Meta(gt=0, le=MAX_TOKENS_PER_S)]


class ReservationResult(Struct, frozen=True):
    """Capacity that is reserved for an account: replicas for these tokens per second are kept in the PoP in addition to
    the measured demand."""

    account_id: str
    model: str
    pop: str
    tokens_per_s: float


class RemovedRule(Struct, frozen=True):
    """A rule that has been removed."""

    model: str
    pop: str | None


@describe(result=ScalingPlan)
async def plan(services: Services, _request: ManagementRequest) -> Response:
    """Make the scaling plan of this moment, with its reasons. Changes nothing."""
    autoscaler = services.autoscaler
    made, record = make_plan(await autoscaler.inputs()), await autoscaler.record()
    return respond(
        ScalingPlan(
            is_on=autoscaler.is_on,
            holder=None if record is None else record.holder,
            applied_at=None if record is None else datetime.fromtimestamp(record.at_s, UTC),
            targets=[_target(each) for each in made.targets],
            changes=[_change(each) for each in made.changes],
            unplaced=_unplaced(made),
        )
    )


@describe(result=WhatIfPlan)
@takes_query(WhatIfQuery)
async def what_if(services: Services, _request: ManagementRequest, query: WhatIfQuery) -> Response:
    """Compare the scaling plan with that of a fleet that has lost a PoP, or has one more. Changes nothing."""
    if (query.lose is None) == (query.add is None):
        raise invalid("give either lose or add")
    inputs = await services.autoscaler.inputs()
    pops = {each.pop: each for each in services.fleet.pops()}
    if query.lose is not None:
        if query.lose not in {node.pop for node in inputs.nodes}:
            raise invalid(f"lose: no node runs in the PoP {query.lose}")
        after = what_ifs.lose_pop(inputs, query.lose)
    else:
        assert query.add is not None
        after = what_ifs.add_pop(
            inputs,
            what_ifs.NewPop(query.add, query.nodes, _point(query)),
            {
                name: None if each.latitude is None or each.longitude is None else (each.latitude, each.longitude)
                for name, each in pops.items()
            },
        )
    found = what_ifs.compare(inputs, after)
    differences = [
        WhatIfDifference(each.model, each.pop, each.num_before, each.num_after, each.reason)
        for each in found.differences
    ]
    return respond(WhatIfPlan(differences, _unplaced(found.plan)))


@describe(result=list[OverrideResult])
async def list_overrides(services: Services, _request: ManagementRequest) -> Response:
    """List the overrides of autoscaling."""
    return respond([_override(each) for each in await scaling_rules.list_overrides(services.database)])


@describe(result=OverrideResult)
@takes_body(OverrideBody)
async def put_override(services: Services, request: ManagementRequest, body: OverrideBody) -> Response:
    """Set how many replicas a model has at least and at most, in one PoP or in all together, and whether they are
    pinned. Replaces the override of the same model and PoP."""
    rule = Override(
        await _model_in(services, request),
        body.pop or EVERYWHERE,
        body.min_replicas,
        body.max_replicas,
        body.is_pinned,
    )
    with change_errors("max_replicas"):
        await scaling_rules.put_override(services.database, rule, context=request.change_context)
    return respond(_override(rule))


@describe(result=RemovedRule)
@takes_query(PopQuery)
async def remove_override(services: Services, request: ManagementRequest, query: PopQuery) -> Response:
    """Remove an override."""
    model, pop = str(request.path_params["model"]), query.pop or EVERYWHERE
    is_found = await scaling_rules.remove_override(services.database, model, pop, context=request.change_context)
    existing(is_found or None)
    return respond(RemovedRule(model, query.pop))


@describe(result=list[ReservationResult])
async def list_reservations(services: Services, _request: ManagementRequest) -> Response:
    """List the capacity that is reserved for all accounts."""
    return respond([_reservation(each) for each in await scaling_rules.list_reservations(services.database)])


@describe(result=list[ReservationResult])
async def list_own_reservations(services: Services, request: ManagementRequest) -> Response:
    """List the capacity that is reserved for the account."""
    found = await scaling_rules.list_reservations(services.database, request.account_id)
    return respond([_reservation(each) for each in found])


@describe(result=ReservationResult)
@takes_body(ReservationBody)
async def put_reservation(services: Services, request: ManagementRequest, body: ReservationBody) -> Response:
    """Reserve capacity of a model in a PoP for the account. Replaces the reservation of the same model and PoP."""
    account = existing(await accounts.find(services.database, request.account_id))
    model = await _model_in(services, request)
    reservation = Reservation(account.account_id, model, body.pop, body.tokens_per_s)
    with change_errors():
        await scaling_rules.put_reservation(services.database, reservation, context=request.change_context)
    return respond(_reservation(reservation))


@describe(result=RemovedRule)
@takes_query(RequiredPopQuery)
async def remove_reservation(services: Services, request: ManagementRequest, query: RequiredPopQuery) -> Response:
    """Release reserved capacity."""
    model = str(request.path_params["model"])
    is_found = await scaling_rules.remove_reservation(
        services.database, request.account_id, model, query.pop, context=request.change_context
    )
    existing(is_found or None)
    return respond(RemovedRule(model, query.pop))


async def _model_in(services: Services, request: ManagementRequest) -> str:
    """Return the model's own name. Raises Refusal."""
    return (await find_model(services.registry, str(request.path_params["model"]))).card.name


def _point(query: WhatIfQuery) -> tuple[float, float] | None:
    if query.latitude is not None and query.longitude is not None:
        return query.latitude, query.longitude
    known = find_known_pop(query.add or "")
    return None if known is None else (known.latitude, known.longitude)


def _target(target: Target) -> ScalingTarget:
    return ScalingTarget(
        model=target.model,
        pop=target.pop,
        num_replicas=target.num_replicas,
        num_current=target.num_current,
        tokens_per_s=round(target.tokens_per_s, 3),
        reason=target.reason,
    )


def _change(change: Change) -> ScalingChange:
    return ScalingChange(change.action, change.model, change.node_id, change.pop, change.reason)


def _unplaced(made: Plan) -> list[UnplacedReplicas]:
    def shown(each: Unplaced) -> UnplacedReplicas:
        return UnplacedReplicas(each.model, each.pop, each.num_replicas, each.reason)

    return [shown(each) for each in made.unplaced]


def _override(rule: Override) -> OverrideResult:
    return OverrideResult(
        model=rule.model,
        pop=rule.pop or None,
        min_replicas=rule.min_replicas,
        max_replicas=rule.max_replicas,
        is_pinned=rule.is_pinned,
    )


def _reservation(each: Reservation) -> ReservationResult:
    return ReservationResult(each.account_id, each.model, each.pop, each.tokens_per_s)
