"""Placement: order the nodes that may serve a call, best first, and explain the order. One pure function, `place`;
the caller supplies the node snapshot and the clock.

1. Filters remove nodes that cannot or must not take the call, in the order of FILTERS. The last two, for failing and
   overheated nodes, remove no more than half of the nodes and never the last one.
2. For each remaining node, the time to the first token is predicted: queued tokens by measured speed, the round trip,
   and the time to load the model. The nearest nodes are those whose round trip and loading time are the best.
3. Among the nearest nodes, rendezvous hashing on the call's affinity key sends equal calls to the same node. A node
   is not preferred if it has more than its bounded share of queued tokens, if it is much slower than the best one, or
   if its slow start excludes this key. Such nodes follow, with all others, in the order of the prediction.

Gateways agree without communicating, as far as they see the same nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from operator import add

from msgspec import Struct

from gateway.nodes.candidate import Candidate

FILTERS = ("reachable", "draining", "model", "residency", "failing", "limits")
"""The first three are applied by the snapshot (`Candidate.exclusion`), the others to each call."""

_OPENING_CHARACTERS = 128  # about the first two blocks of tokens
_MAX_IN_HEADER = 8  # nodes of each kind
_MASK = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15
_TIE_S = 1e-6 / _MASK  # nodes whose predictions differ by less than a microsecond are in the order of hashing
_FARTHER = "farther away, or the model must be loaded"


class PlacementPolicy(Struct, frozen=True, kw_only=True):
    """The constants of placement.

    | Field | Meaning |
    |---|---|
    | `load_bound` | a node above this multiple of the mean queue of the nearest nodes is not preferred |
    | `load_floor_tokens` | a node with fewer queued tokens is never over its share |
    | `near_s` | nodes that are at most this much farther than the nearest one count as nearest |
    | `tolerance_s` | a preferred node may be this much slower than the best, besides `load_floor_tokens` |
    | `max_lateness_s` | a node whose first events come this much later than those of the best is not preferred |
    """

    load_bound: float = 5.0
    load_floor_tokens: int = 4096
    near_s: float = 0.010
    tolerance_s: float = 0.3
    max_lateness_s: float = 0.5


DEFAULT_POLICY = PlacementPolicy()


class Removal(Struct, frozen=True):
    """A node that a filter removed, and why."""

    node_id: str
    reason: str


class Ranked(Struct, frozen=True):
    """A node that may take the call, its predicted seconds to the first token, and the reason of its rank. `tier` is 1
    for nodes in the order of affinity, and 2 for those in the order of the prediction."""

    node: Candidate
    tier: int
    predicted_s: float
    reason: str


class Placement(Struct, frozen=True):
    """The nodes of a call, best first, each with its predicted seconds to the first token and why it is not preferred
    ("" if it is), and the nodes that each filter removed. Of the latter, `reserve` can be tried if all others fail.
    `costs` has the cost of each node if prices decided (`cost_policy.py`)."""

    nodes: list[Candidate]
    predicted_s: list[float]
    demotions: list[str]
    removed: dict[str, list[Removal]]
    reserve: list[Candidate]
    costs: list[str] = []

    def ranked(self) -> list[Ranked]:
        """Return the nodes with the explanation of their order."""
        costs = self.costs or [""] * len(self.nodes)
        rows = zip(self.nodes, self.predicted_s, self.demotions, costs, strict=True)
        return [
            Ranked(node, 2 if demotion else 1, s, _reason(node, demotion) + f"; {cost}" * bool(cost))
            for node, s, demotion, cost in rows
        ]


def affinity_key(namespace: bytes, session: bytes | None, opening_text: str) -> bytes:
    """Return a 16-byte key of the client's session, or else of the beginning of the prompt. Calls with equal keys
    prefer the same node. Keys of different namespaces are never equal."""
    if session is not None:
        text = b"s" + session
    else:
        text = b"p" + opening_text[:_OPENING_CHARACTERS].encode("utf-8", "replace")
    return hashlib.blake2b(text, key=namespace, digest_size=16).digest()


def place(
    affinity: bytes,
    nodes: Collection[Candidate],
    *,
    now_s: float,
    num_tokens: int = 0,
    admits: Callable[[Candidate], bool] | None = None,
    policy: PlacementPolicy = DEFAULT_POLICY,
) -> Placement:
    """Return the placement of a call of about `num_tokens` tokens among `nodes`. `now_s` is the clock of the nodes'
    `health`, and `admits` returns True for a node that the call's residency rules admit."""
    removed: dict[str, list[Removal]] = {}
    remaining = _filter(nodes, admits, removed)
    reserve: list[Candidate] = []
    failing = [node for node in remaining if node.health.ejected_until_s > now_s]
    if failing:
        remaining = _without(failing, "failing", lambda node: _why_failing(node, now_s), remaining, removed, reserve)
    limited = [node for node in remaining if node.limit]
    if limited:
        remaining = _without(limited, "limits", lambda node: node.limit, remaining, removed, reserve)
    if not remaining:
        return Placement([], [], [], removed, reserve)
    if len(remaining) == 1:
        node = remaining[0]
        return Placement(remaining, [node.base_s + node.load_tokens * node.s_per_token], [""], removed, reserve)
    return _rank(affinity, remaining, now_s, num_tokens, policy, removed, reserve)


def header_of(found: Placement) -> str:
    """Return a placement as a header value, such as `ranked=n1:0.012,n2:0.050; removed=n3:draining`. The numbers are
    the predicted seconds to the first token."""
    pairs = zip(found.nodes[:_MAX_IN_HEADER], found.predicted_s, strict=False)
    ranked = ",".join(f"{node.node_id}:{predicted_s:.3f}" for node, predicted_s in pairs)
    removed = [f"{each.node_id}:{name}" for name in FILTERS for each in found.removed.get(name, ())]
    return f"ranked={ranked}; removed={','.join(removed[:_MAX_IN_HEADER])}".encode("ascii", "replace").decode()


def _filter(
    nodes: Collection[Candidate], admits: Callable[[Candidate], bool] | None, removed: dict[str, list[Removal]]
) -> list[Candidate]:
    """Return the nodes that can take the call and that the residency rules admit."""
    remaining = [node for node in nodes if node.exclusion is None]
    if admits is None and len(remaining) == len(nodes):
        return remaining
    remaining = []
    for node in nodes:
        exclusion = node.exclusion
        if exclusion is not None:
            removed.setdefault(exclusion.filter, []).append(Removal(node.node_id, exclusion.reason))
        elif admits is not None and not admits(node):
            where = f"PoP {node.proven_pop}" if node.proven_pop else "the node's PoP, which it has not proven,"
            reason = f"{where} is not admitted by the region rules"
            removed.setdefault("residency", []).append(Removal(node.node_id, reason))
        else:
            remaining.append(node)
    return remaining


def _without(
    excluded: list[Candidate],
    name: str,
    why: Callable[[Candidate], str],
    nodes: list[Candidate],
    removed: dict[str, list[Removal]],
    reserve: list[Candidate],
) -> list[Candidate]:
    """Return the nodes without the excluded ones, or all if more than half are excluded: the nodes are not the cause
    of such a failure, and the others could not take the load."""
    if 2 * len(excluded) > len(nodes):
        return nodes
    removed[name] = [Removal(node.node_id, why(node)) for node in excluded]
    reserve += excluded
    ids = {id(node) for node in excluded}
    return [node for node in nodes if id(node) not in ids]


def _why_failing(node: Candidate, now_s: float) -> str:
    return f"calls to the node failed; it gets none for {node.health.ejected_until_s - now_s:.1f} s"


def _rank(
    affinity: bytes,
    nodes: list[Candidate],
    now_s: float,
    num_tokens: int,
    policy: PlacementPolicy,
    removed: dict[str, list[Removal]],
    reserve: list[Candidate],
) -> Placement:
    key = int.from_bytes(affinity[:8], "little")
    base = [node.base_s for node in nodes]
    tokens = [
        reported if (reported := node.reported_tokens) > (sent := node.link.tokens_in_flight) else sent
        for node in nodes
    ]
    queued_s = [count * node.s_per_token for count, node in zip(tokens, nodes, strict=True)]
    predicted = list(map(add, base, queued_s))
    health = [node.health for node in nodes]
    is_late = True in [each.was_late for each in health]
    lateness = [each.lateness_s(now_s) for each in health] if is_late else [0.0] * len(nodes)
    nearest_s = min(base) + policy.near_s
    near = [index for index, s in enumerate(base) if s <= nearest_s]
    bound_s = policy.load_bound * sum([queued_s[index] for index in near]) / len(near)
    floor_tokens, own_tokens = policy.load_floor_tokens, max(policy.load_floor_tokens, num_tokens)
    starting = {index for index in near if health[index].settles_at_s > now_s}
    slowest_s = min(predicted) + policy.tolerance_s
    latest_s = min(lateness) + policy.max_lateness_s
    scores = [((node.node_hash ^ key) * _MIX) & _MASK for node in nodes]
    order = []
    demotions = [_FARTHER] * len(nodes)
    for index in near:
        count, first_s = tokens[index], predicted[index]
        if count > floor_tokens and queued_s[index] > bound_s:
            demotions[index] = "more than its share of queued tokens"
        elif first_s > slowest_s and first_s > slowest_s + own_tokens * nodes[index].s_per_token:
            demotions[index] = "slower than the best node by more than a cached prefix can save"
        elif lateness[index] > latest_s:
            demotions[index] = f"its first events are {lateness[index]:.1f} s late"
        elif index in starting and (scores[index] >> 32 & 0xFFFF) > 0xFFFF * health[index].share(now_s):
            demotions[index] = "slow start"
        else:
            demotions[index] = ""
            order.append(index)
    order.sort(key=scores.__getitem__)
    if len(order) < len(nodes):
        first_s = map(add, predicted, lateness) if is_late else predicted
        ranks = [s + score * _TIE_S for s, score in zip(first_s, scores, strict=True)]
        order += sorted([index for index, demotion in enumerate(demotions) if demotion], key=ranks.__getitem__)
    return Placement(
        list(map(nodes.__getitem__, order)),
        list(map(predicted.__getitem__, order)),
        list(map(demotions.__getitem__, order)),
        removed,
        reserve,
    )


def _reason(node: Candidate, demotion: str) -> str:
    readiness = "ready" if node.is_hot else "loading" if node.is_loading else "not loaded"
    round_trip = f"round trip {1000 * node.round_trip_s:.1f} ms"
    return f"model is {readiness}; PoP {node.pop}, {round_trip}; {demotion or 'order by affinity'}"
