"""Where this process and the nodes stand, by the operator's table; and what that lets a call do.

A node's place is the PoP that it has proven, never the one that it claims. What is in no table is nowhere, and only
calls without a rule go there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange
from gateway.nodes.snapshot import Candidate
from tenants.credentials.principal import Principal
from tenants.residency import NOWHERE, Place, Residency, parse_place, parse_places, parse_rule

_MAX_HEADER = 512


@dataclass(frozen=True)
class Places:
    """`own` is this process's, `stores` that of Redis, the database and the object store."""

    own: Place = NOWHERE
    stores: Place = NOWHERE
    by_pop: dict[str, Place] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str, pop: str, stores: str) -> Places:
        """From the settings. Raises ValueError."""
        by_pop = parse_places(text)
        own = by_pop.get(pop, NOWHERE)
        return cls(own, parse_place(stores) if stores else own, by_pop)

    def admits(self, residency: Residency, candidate: Candidate) -> bool:
        """Whether a call may go to that node."""
        return not residency.rules or residency.admits(self.by_pop.get(candidate.proven_pop, NOWHERE))

    def hold(self, principal: Principal, exchange: Exchange) -> Principal:
        """The principal, held to what its request asks beside. Raises Refusal for a header that is no region, and where
        this process itself is outside: nothing more of the request is read."""
        residency = principal.residency
        asked = exchange.header(b"x-hearth-region")
        if asked is not None:
            try:
                text = asked[: _MAX_HEADER + 1].decode("ascii")
                residency = residency.narrowed(parse_rule(text if len(text) <= _MAX_HEADER else ""))
                principal = replace(principal, residency=residency)
            except ValueError as error:
                why = "must be ASCII" if isinstance(error, UnicodeDecodeError) else str(error)
                raise Refusal(Reason.HEADER_INVALID, f"x-hearth-region: {why}") from None
        if residency.rules and not residency.admits(self.own):
            raise Refusal(Reason.OUT_OF_CAPACITY)
        return principal
