"""Placement: order the nodes that may serve a call, best first. Pure functions; the caller supplies the node snapshot.

Nodes form tiers: a hot replica before a loading one before a node that would have to load the model (a hop costs
milliseconds, a load seconds), and within each the gateway's own PoP before others. Inside a tier, rendezvous hashing on
the call's affinity key sends equal calls to the same node, unless that node has more than its bounded share of queued
tokens. Gateways agree without communicating.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from gateway.nodes.snapshot import Candidate

LOAD_BOUND = 1.25  # a node above this multiple of its tier's mean load is ranked last
LOAD_FLOOR_TOKENS = 4096  # nodes with fewer queued tokens never count as overloaded
_OPENING_CHARACTERS = 128  # about the first two blocks of tokens


def affinity_key(namespace: bytes, session: bytes | None, opening_text: str) -> bytes:
    """Return a 16-byte key of the client's session, or else of the beginning of the prompt. Calls with equal keys
    prefer the same node. Keys of different namespaces are never equal."""
    if session is not None:
        text = b"s" + session
    else:
        text = b"p" + opening_text[:_OPENING_CHARACTERS].encode("utf-8", "replace")
    return hashlib.blake2b(text, key=namespace, digest_size=16).digest()


def rank_nodes(affinity: bytes, pop: str, nodes: Iterable[Candidate]) -> list[Candidate]:
    """Return all `nodes`, best first. `pop` is the gateway's own."""
    ranked = list(nodes)
    if len(ranked) <= 1:
        return ranked
    tiers: dict[tuple[int, bool], list[Candidate]] = {}
    for node in ranked:
        readiness = 0 if node.is_hot else 1 if node.is_loading else 2
        tiers.setdefault((readiness, node.pop != pop), []).append(node)
    return [node for tier in sorted(tiers) for node in _rank_tier(affinity, tiers[tier])]


def _rank_tier(affinity: bytes, nodes: Sequence[Candidate]) -> list[Candidate]:
    mean_load = sum(node.load_tokens for node in nodes) / len(nodes)
    bound = max(LOAD_FLOOR_TOKENS, LOAD_BOUND * mean_load)

    def key(node: Candidate) -> tuple[bool, bytes]:
        return node.load_tokens > bound, hashlib.blake2b(node.node_id.encode(), key=affinity, digest_size=8).digest()

    return sorted(nodes, key=key)
