"""NodeSelector: the placement of a call among the nodes of the snapshot."""

from __future__ import annotations

import functools

from catalog.card import ModelCard
from gateway import placement
from gateway.call import Call
from gateway.cost_ranking import CostRanking
from gateway.nodes.blocked_inputs import BlockedInputs
from gateway.nodes.residency import Locations
from gateway.nodes.snapshot import Nodes
from gateway.placement import DEFAULT_POLICY, Placement, PlacementPolicy
from tenants.residency import Residency


class NodeSelector:
    """Applies residency rules, placement and the cost policy to the node snapshot."""

    def __init__(
        self,
        nodes: Nodes,
        locations: Locations,
        blocked_inputs: BlockedInputs,
        cost_ranking: CostRanking,
        policy: PlacementPolicy = DEFAULT_POLICY,
    ) -> None:
        self._nodes = nodes
        self._cost_ranking = cost_ranking
        self._locations = locations
        self._blocked_inputs = blocked_inputs
        self._policy = policy

    def now_s(self) -> float:
        """Return the time on the clock of the nodes' `health`."""
        return self._nodes.now_s()

    def place(self, call: Call) -> Placement:
        """Return the placement of the call among the nodes that can take it."""
        found = placement.place(
            call.affinity,
            self._nodes.candidates(call.card, call.principal.residency, self._locations.admits),
            now_s=self._nodes.now_s(),
            num_tokens=call.num_estimated_tokens,
            policy=self._policy,
        )
        max_tokens = call.task.max_completion_tokens
        return self._cost_ranking.apply(found, call.card, max(0, call.num_estimated_tokens - max_tokens), max_tokens)

    def explain(
        self, card: ModelCard, affinity: bytes, num_tokens: int, residency: Residency, max_tokens: int = 0
    ) -> Placement:
        """Return the placement of such a call among all nodes, with its explanation. `max_tokens` of its `num_tokens`
        are those of the completion."""
        found = placement.place(
            affinity,
            self._nodes.all_candidates(card),
            now_s=self._nodes.now_s(),
            num_tokens=num_tokens,
            admits=functools.partial(self._locations.admits, residency),
            policy=self._policy,
        )
        return self._cost_ranking.apply(found, card, max(0, num_tokens - max_tokens), max_tokens)

    def block(self, call: Call) -> None:
        """Refuse the input of this call from now on: nodes report that it crashes their processes."""
        self._blocked_inputs.add(call)
