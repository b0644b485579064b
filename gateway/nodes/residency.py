"""Data residency: the location of this gateway, of the stores and of each PoP, from the operator's table.

A node's location is that of the PoP that its service key proves, never of the one that it claims. A PoP that has no
entry in the table has no location, so only calls without a residency rule run there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange
from gateway.nodes.candidate import Candidate
from tenants.credentials.principal import Principal
from tenants.residency import UNKNOWN_LOCATION, Location, Residency, parse_location, parse_locations, parse_rule

_MAX_HEADER = 512


@dataclass(frozen=True)
class Locations:
    """`own` is the location of this process, `stores` that of Redis, the database and the object store."""

    own: Location = UNKNOWN_LOCATION
    stores: Location = UNKNOWN_LOCATION
    by_pop: dict[str, Location] = field(default_factory=dict)

    @classmethod
    def parse(cls, table: str, pop: str, stores: str) -> Locations:
        """Parse the settings; `pop` is this gateway's. Raises ValueError."""
        by_pop = parse_locations(table)
        own = by_pop.get(pop, UNKNOWN_LOCATION)
        return cls(own, parse_location(stores) if stores else own, by_pop)

    def admits(self, residency: Residency, candidate: Candidate) -> bool:
        """Return True if a call with these rules may run on the node."""
        if residency.is_zero_retention and not candidate.link.keeps_no_content:
            return False
        return not residency.rules or residency.admits(self.by_pop.get(candidate.proven_pop, UNKNOWN_LOCATION))

    def restrict(self, principal: Principal, exchange: Exchange) -> Principal:
        """Return the principal with the rule in the request's `x-hearth-region` header added to its own rules.

        Raises Refusal if the header is malformed, or if this gateway is outside the region: nothing more of the
        request is read then.
        """
        residency = principal.residency
        header = exchange.header(b"x-hearth-region")
        if header is not None:
            try:
                text = header[: _MAX_HEADER + 1].decode("ascii")
                residency = residency.narrowed(parse_rule(text if len(text) <= _MAX_HEADER else ""))
                principal = replace(principal, residency=residency)
            except ValueError as error:
                reason = "must be ASCII" if isinstance(error, UnicodeDecodeError) else str(error)
                raise Refusal(Reason.HEADER_INVALID, f"x-hearth-region: {reason}") from None
        if residency.rules and not residency.admits(self.own):
            raise Refusal(Reason.OUT_OF_CAPACITY)
        return principal
