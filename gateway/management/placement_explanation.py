"""`A/ai/placement/explain`: why a call would run on one node and not on the others."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from gateway import authentication, placement
from gateway.management.endpoint import ManagementRequest, existing, respond, takes_query
from gateway.model_names import find_model
from gateway.openapi.operation import describe
from gateway.placement import Ranked
from gateway.services import Services
from tenants import accounts
from tenants.residency import Residency

CHARACTERS_PER_TOKEN = 4


class ExplainQuery(Struct, frozen=True, kw_only=True):
    """Query parameters of an explanation: the model, and the value of `x-session-affinity` or the text with which the
    prompt begins."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    session: Annotated[str, Meta(pattern="^[A-Za-z0-9._:-]{0,128}$")] = ""
    prompt: Annotated[str, Meta(max_length=8192)] = ""


class RemovedNode(Struct, frozen=True):
    """A node that a filter removed."""

    node_id: str
    reason: str


class FilterStep(Struct, frozen=True):
    """One filter, in the order of application."""

    filter: str
    removed: list[RemovedNode]


class RankedNode(Struct, frozen=True):
    """A node that may take the call. `tier` is 1 for nodes in the order of affinity, and 2 for those after them, in the
    order of `predicted_s`: the predicted seconds to the first token. `load_tokens` and `predicted_s` are null for
    callers without a platform role."""

    node_id: str
    pop: str
    tier: int
    load_tokens: int | None
    predicted_s: float | None
    round_trip_ms: float
    is_hot: bool
    reason: str


class PlacementExplanation(Struct, frozen=True):
    """The placement of a call: the filters in order, then the remaining nodes, best first. `affinity` is the key that
    places similar calls on the same node."""

    model: str
    affinity: str
    steps: list[FilterStep]
    ranked: list[RankedNode]


@describe(result=PlacementExplanation)
@takes_query(ExplainQuery)
async def explain(services: Services, request: ManagementRequest, query: ExplainQuery) -> Response:
    """Explain on which node a call of the account would run now. Considers the account's region, but no rules of an API
    token or of a single call."""
    account = existing(await accounts.find(services.database, request.account_id))
    card = (await find_model(services.registry, query.model)).card
    namespace, _ = services.cache_identity(account.account_id)
    affinity = placement.affinity_key(namespace, query.session.encode() or None, query.prompt)
    residency = Residency((account.region,)) if account.region is not None else Residency()

    num_tokens = len(query.prompt) // CHARACTERS_PER_TOKEN + card.default_max_tokens
    found = services.node_selector.explain(card, affinity, num_tokens, residency, card.default_max_tokens)
    shows_load = authentication.has_platform_role(request.principal)
    return respond(
        PlacementExplanation(
            model=card.name,
            affinity=affinity.hex(),
            steps=[
                FilterStep(name, [RemovedNode(each.node_id, each.reason) for each in found.removed.get(name, ())])
                for name in placement.FILTERS
            ],
            ranked=[_ranked(each, shows_load) for each in found.ranked()],
        )
    )


def _ranked(ranked: Ranked, shows_load: bool) -> RankedNode:
    node = ranked.node
    return RankedNode(
        node_id=node.node_id,
        pop=node.pop,
        tier=ranked.tier,
        load_tokens=node.load_tokens if shows_load else None,
        predicted_s=round(ranked.predicted_s, 4) if shows_load else None,
        round_trip_ms=round(1000 * node.round_trip_s, 1),
        is_hot=node.is_hot,
        reason=ranked.reason,
    )
