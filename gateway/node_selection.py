"""NodeSelector: the links to nodes that may take a call now, best first."""

from __future__ import annotations

from gateway import placement
from gateway.call import Call
from gateway.nodes.blocked_inputs import BlockedInputs
from gateway.nodes.connections import NodeLink
from gateway.nodes.residency import Locations
from gateway.nodes.snapshot import Nodes


class NodeSelector:
    """Applies residency rules and placement to the node snapshot. `pop` is the gateway's own."""

    def __init__(self, nodes: Nodes, locations: Locations, blocked_inputs: BlockedInputs, pop: str) -> None:
        self._nodes = nodes
        self._locations = locations
        self._blocked_inputs = blocked_inputs
        self._pop = pop

    def links(self, call: Call) -> list[NodeLink]:
        """Return the links to the nodes that may take the call, in order of preference."""
        residency = call.principal.residency
        candidates = self._nodes.candidates(call.card)
        if residency.rules:
            candidates = tuple(each for each in candidates if self._locations.admits(residency, each))
        return [node.link for node in placement.rank_nodes(call.affinity, self._pop, candidates)]

    def block(self, call: Call) -> None:
        """Refuse the input of this call from now on: nodes report that it crashes their processes."""
        self._blocked_inputs.add(call)
