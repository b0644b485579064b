"""Which nodes should take a call, best first. Pure: the call's key and what is known of the nodes -> an order.

Nodes fall into tiers: a hot replica before one that loads before a node that would have to load (a hop costs
milliseconds, a load seconds), and within each the same PoP before another. Inside a tier rendezvous hashing on the
call's affinity gives equal calls the same node, unless that node carries more than its bounded share of queued tokens.
Gateways agree without talking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

LOAD_BOUND = 1.25  # times the tier's mean load; more than that and the call goes to the next in its order
LOAD_FLOOR_TOKENS = 4096  # below this no node counts as overloaded


class Place(Protocol):
    """What placement needs to know of a node."""

    @property
    def node_id(self) -> str: ...
    @property
    def pop(self) -> str: ...
    @property
    def is_hot(self) -> bool: ...
    @property
    def is_loading(self) -> bool: ...
    @property
    def load_tokens(self) -> int: ...


P = TypeVar("P", bound=Place)


def affinity_of(namespace: bytes, session: bytes | None, opening: str) -> bytes:
    """The key that should meet the same node again: the client's session if it names one, else how its prompt opens
    (about the first two blocks of tokens); never shared between namespaces."""
    text = b"s" + session if session is not None else b"p" + opening[:128].encode("utf-8", "replace")
    return hashlib.blake2b(text, key=namespace, digest_size=16).digest()


def order(affinity: bytes, pop: str, places: Iterable[P]) -> list[P]:
    """All of `places`, best first."""
    everyone = list(places)
    if len(everyone) <= 1:
        return everyone
    tiers: dict[tuple[int, bool], list[P]] = {}
    for place in everyone:
        readiness = 0 if place.is_hot else 1 if place.is_loading else 2
        tiers.setdefault((readiness, place.pop != pop), []).append(place)
    return [place for tier in sorted(tiers) for place in _order_tier(affinity, tiers[tier])]


def _order_tier(affinity: bytes, places: Sequence[P]) -> list[P]:
    mean_load = sum(place.load_tokens for place in places) / len(places)
    bound = max(LOAD_FLOOR_TOKENS, LOAD_BOUND * mean_load)

    def rank(place: P) -> tuple[bool, bytes]:
        return place.load_tokens > bound, hashlib.blake2b(place.node_id.encode(), key=affinity, digest_size=8).digest()

    return sorted(places, key=rank)
