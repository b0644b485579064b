"""Prefix caches: the Mooncake conversations on 8 nodes of one PoP, placed by Hearth and by simpler strategies.

Each node computes its queue in order of arrival and keeps the blocks of prompts, least recently used first. A call's
session is named by its second block, because the first one is a system prompt that all calls share.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.fabric.traces import TracedCall
from gateway.nodes.candidate import Candidate, hash_of
from gateway.nodes.health import NodeHealth
from gateway.placement import PlacementPolicy, affinity_key, place

NUM_NODES = 8
TOKENS_PER_S = 20_000.0  # speed of one node: uncached prompt tokens and output tokens together
_NAMESPACE = bytes(32)


@dataclass
class CachingNode:
    """One node with its queue and cache. Has the interface of a node's link."""

    node_id: str
    max_blocks: int
    is_open: bool = True
    tokens_in_flight: int = 0
    free_at_s: float = 0.0
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    queue: deque[tuple[float, int]] = field(default_factory=deque)  # end of a call, its tokens
    num_hits: int = 0
    num_computed: int = 0
    num_calls: int = 0

    def advance(self, now_s: float) -> None:
        """Remove the calls that have ended."""
        while self.queue and self.queue[0][0] <= now_s:
            self.tokens_in_flight -= self.queue.popleft()[1]

    def cached_blocks(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks of a prompt are in the cache."""
        for number, block in enumerate(blocks):
            if block not in self.cache:
                return number
        return len(blocks)

    def run(self, call: TracedCall, block_tokens: int) -> float:
        """Run a call. Return its seconds to the first token."""
        num_hits = self.cached_blocks(call.blocks)
        num_prompt = max(1, call.num_prompt - num_hits * block_tokens)
        for block in call.blocks:
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.max_blocks:
            self.cache.popitem(last=False)
        computed = num_prompt + call.num_output
        begin_s = max(self.free_at_s, call.at_s)
        self.free_at_s = begin_s + computed / TOKENS_PER_S
        # The gateway counts the whole prompt: it does not know what is cached.
        sent = call.num_prompt + call.num_output
        self.queue.append((self.free_at_s, sent))
        self.tokens_in_flight += sent
        self.num_hits += num_hits
        self.num_computed += computed
        self.num_calls += 1
        return begin_s - call.at_s + num_prompt / TOKENS_PER_S


@dataclass(frozen=True)
class CacheResult:
    """Results of one strategy: part of all blocks found in a cache, the largest load of a node by the mean (calls'
    computed tokens), and the median and 95th percentile of the seconds to the first token."""

    strategy: str
    hit_ratio: float
    load_spread: float
    ttft_p50_s: float
    ttft_p95_s: float


Chooser = Callable[[TracedCall, int, list[CachingNode]], CachingNode]


def run_strategies(calls: Sequence[TracedCall], block_tokens: int, max_blocks: int) -> list[CacheResult]:
    """Return the results of all strategies, each node with a cache of `max_blocks` blocks."""
    strategies: dict[str, Chooser] = {
        "Hearth": hearth_chooser(),
        "consistent hashing": _hash_chooser(),
        "least loaded": lambda _call, _number, nodes: min(nodes, key=lambda node: node.tokens_in_flight),
        "round robin": lambda _call, number, nodes: nodes[number % len(nodes)],
        "oracle": _by_cache,
    }
    results = [_run(name, calls, block_tokens, max_blocks, choose, NUM_NODES) for name, choose in strategies.items()]
    unlimited = _run("one unlimited cache", calls, block_tokens, 1 << 60, lambda _c, _n, nodes: nodes[0], 1)
    return [unlimited, *results]


def hearth_chooser(policy: PlacementPolicy | None = None) -> Chooser:
    """Return the strategy that places calls as gateways do."""
    health = NodeHealth()
    policy = policy or PlacementPolicy()
    candidates: dict[int, list[Candidate]] = {}

    def choose(call: TracedCall, _number: int, nodes: list[CachingNode]) -> CachingNode:
        if id(nodes) not in candidates:
            candidates[id(nodes)] = [_candidate(node, health) for node in nodes]
        key = affinity_key(_NAMESPACE, _session(call), "")
        num_tokens = call.num_prompt + call.num_output
        found = place(key, candidates[id(nodes)], now_s=call.at_s, num_tokens=num_tokens, policy=policy)
        node: CachingNode = found.nodes[0].link
        return node

    return choose


def _candidate(node: CachingNode, health: NodeHealth) -> Candidate:
    number = hash_of(node.node_id)
    return Candidate(link=node, health=health, node_hash=number, pop="lis", tokens_per_s=TOKENS_PER_S)


def _session(call: TracedCall) -> bytes:
    return str(call.blocks[:2][-1]).encode()


def _hash_chooser() -> Chooser:
    """Return the strategy of plain consistent hashing: a ring with 64 points per node, and no bound on the load."""
    ring = sorted(
        (int.from_bytes(hashlib.blake2b(f"{number}/{copy}".encode(), digest_size=8).digest(), "big"), number)
        for number in range(NUM_NODES)
        for copy in range(64)
    )

    def choose(call: TracedCall, _number: int, nodes: list[CachingNode]) -> CachingNode:
        key = int.from_bytes(hashlib.blake2b(_session(call), digest_size=8).digest(), "big")
        return nodes[ring[bisect.bisect(ring, (key, 0)) % len(ring)][1]]

    return choose


def _by_cache(call: TracedCall, _number: int, nodes: list[CachingNode]) -> CachingNode:
    """Return the node with the earliest first token, knowing every cache and queue."""

    def first_token_s(node: CachingNode) -> float:
        return max(0.0, node.free_at_s - call.at_s) - node.cached_blocks(call.blocks) * 512 / TOKENS_PER_S

    return min(nodes, key=first_token_s)


def _run(
    name: str, calls: Sequence[TracedCall], block_tokens: int, max_blocks: int, choose: Chooser, num_nodes: int
) -> CacheResult:
    nodes = [CachingNode(f"node-{number}", max_blocks) for number in range(num_nodes)]
    ttfts = []
    for number, call in enumerate(calls):
        for node in nodes:
            node.advance(call.at_s)
        ttfts.append(choose(call, number, nodes).run(call, block_tokens))
    ttfts.sort()
    loads = [node.num_computed for node in nodes]
    return CacheResult(
        name,
        sum(node.num_hits for node in nodes) / sum(len(call.blocks) for call in calls),
        max(loads) * len(loads) / sum(loads),
        ttfts[len(ttfts) // 2],
        ttfts[len(ttfts) * 95 // 100],
    )
