"""Candidate: one node as placement sees it, for one model version.

Holds facts of the snapshot and, by reference, the state that changes between two snapshots: the tokens that this
gateway has sent to the node (`link`) and its failures (`health`).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from gateway.nodes.health import NodeHealth

DEFAULT_TOKENS_PER_S = 2000.0  # speed of a replica that has not been measured yet


class Exclusion(NamedTuple):
    """Why a node can take no calls of a model version: the filter that removes it, and the reason."""

    filter: Literal["reachable", "draining", "model"]
    reason: str


class Candidate(Struct, frozen=True, kw_only=True):
    """One node that could serve a model version, unless it has an `exclusion`.

    | Field | Meaning |
    |---|---|
    | `link` | the connection to the node, or an object with its `node_id`, `tokens_in_flight` and `is_open` |
    | `node_hash` | 64 bits derived from the node id (`hash_of`) |
    | `pop`, `proven_pop` | the PoP that the node names, and the one that its service key is bound to, or "" |
    | `is_hot`, `is_loading` | the replica is ready; the replica is loading |
    | `reported_tokens` | queued prompt and completion tokens, as last reported |
    | `num_waiting` | calls that wait for the replica, as last reported |
    | `tokens_per_s` | measured speed of the replica while it computes; greater than 0 |
    | `round_trip_s` | round trip from this gateway to the node's PoP |
    | `load_s` | seconds until the model is ready on the node; 0 if it is |
    | `limit` | why the node is over a power or temperature limit, or "" |
    """

    link: Any
    health: NodeHealth
    node_hash: int
    pop: str
    proven_pop: str = ""
    is_hot: bool = True
    is_loading: bool = False
    reported_tokens: int = 0
    num_waiting: int = 0
    tokens_per_s: float = DEFAULT_TOKENS_PER_S
    round_trip_s: float = 0.0
    load_s: float = 0.0
    limit: str = ""
    exclusion: Exclusion | None = None
    base_s: float = 0.0  # set from `round_trip_s` and `load_s`
    s_per_token: float = 0.0  # set from `tokens_per_s`

    def __post_init__(self) -> None:
        # Placement reads these of every node for every call.
        msgspec.structs.force_setattr(self, "base_s", self.round_trip_s + self.load_s)
        msgspec.structs.force_setattr(self, "s_per_token", 1.0 / self.tokens_per_s)

    @property
    def node_id(self) -> str:
        return str(self.link.node_id)

    @property
    def is_free(self) -> bool:
        """True if a call would run at once, as of the node's last report."""
        return self.is_hot and not self.num_waiting

    @property
    def load_tokens(self) -> int:
        """Queued tokens: as last reported, or those that this gateway has sent, if more."""
        return max(self.reported_tokens, int(self.link.tokens_in_flight))


@lru_cache(maxsize=65536)
def hash_of(node_id: str) -> int:
    """Return the 64-bit hash of a node id. Equal in all gateways."""
    return int.from_bytes(hashlib.blake2b(node_id.encode(), digest_size=8).digest(), "little")
