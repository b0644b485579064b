"""Sampled calls of a simulated day, placed by Hearth and by simpler strategies on the replicas of the schedule.

A few hundred calls stand for the millions of each tick. Nodes are slowed down by the same factor as the calls are
thinned, so that queues in tokens have the length that they would have with all calls; times are computed from these
queues with the real speeds.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.fabric.schedule import OUTAGE_TICKS, Day
from bench.fabric.world import NODE_BYTES, NUM_TICKS, SPIKE_TICKS, SPIKED_MODEL, TICK_S, World, load_s
from engine.serving.replica_policy import Budget, Holding, Need, plan_load
from engine.serving.replica_policy import Plan as LoadPlan
from gateway.nodes.candidate import Candidate, hash_of
from gateway.nodes.health import NodeHealth
from gateway.placement import affinity_key, place
from tenants.residency import Residency, make_rule

CALLS_PER_TICK = 400
EU_SHARE = 0.15  # share of calls from the EU that must stay in the EU
CONTINUES = 0.6  # part of the calls that continue an earlier session of their PoP and model
CACHED_PART = 0.7  # share of a prompt's tokens, if the prompt continues a session
OUTPUT_S_PER_TOKEN = 0.02
DETECTION_S = 5.0  # delay until gateways stop sending calls to nodes of a lost PoP
NUM_COLD_POPS = 6  # nearest PoPs whose nodes are candidates although they must load the model
REGION = "iad"  # the one region of the comparison
_NAMESPACE = bytes(32)
_EU = frozenset(
    "AT BE BG HR CY CZ DK EE FI FR DE GR HU IE IT LV LT LU MT NL PL PT RO SK SI ES SE".split()
)  # written here again, so that the check does not depend on the code that it checks


class SimulatedNode:
    """One node with its queue. Has the interface of a node's link."""

    def __init__(self, number: int, pop: str) -> None:
        self.node_id = f"node-{number:04d}"
        self.number, self.pop = number, pop
        self.is_open = True
        self.queue_s = 0.0  # simulated seconds of work, as of `at_s`
        self.at_s = 0.0
        self.tokens_in_flight = 0
        self.cold: dict[str, float] = {}  # models loaded for a call, with the time of the last use
        self.work = 0.0

    def advance(self, now_s: float) -> None:
        left = max(0.0, self.queue_s - (now_s - self.at_s))
        self.tokens_in_flight = int(self.tokens_in_flight * left / self.queue_s) if self.queue_s > 0 else 0
        self.queue_s, self.at_s = left, now_s


@dataclass(frozen=True)
class SampledCall:
    """One sampled call. `session` names its session, and `continues` is True if that had an earlier call."""

    at_s: float
    tick: int
    model: str
    pop: str
    num_prompt: int
    num_output: int
    session: str
    continues: bool
    is_eu_only: bool


@dataclass
class CallResult:
    """Results of one strategy; times in seconds, one for each served call."""

    strategy: str
    ttfts: list[float] = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)
    is_spiked: list[bool] = field(default_factory=list)
    num_hits: int = 0
    num_continuing: int = 0
    num_cold: int = 0
    failed: float = 0.0  # expected number of failed calls, in sampled calls
    failed_in_outage: float = 0.0
    num_in_outage: int = 0
    num_breaches: int = 0
    load_spread: float = 0.0

    def percentile(self, percent: float, keep: Callable[[int], bool] = lambda _index: True) -> float:
        values = [each for index, each in enumerate(self.ttfts) if keep(index)]
        return float(np.percentile(values, percent)) if values else float("nan")


def sample_calls(world: World, lengths: Sequence[tuple[int, int]], seed: int = 3) -> list[SampledCall]:
    """Return the calls of a day in order of arrival: models and PoPs by demand, lengths from Azure's traces."""
    generator = np.random.default_rng(seed)
    models = list(world.models)
    found: list[SampledCall] = []
    recent: dict[tuple[str, str], list[str]] = defaultdict(list)
    for tick in range(NUM_TICKS):
        demand = world.demand(tick).ravel()
        chosen = generator.choice(demand.size, CALLS_PER_TICK, p=demand / demand.sum())
        times = np.sort(generator.uniform(0, TICK_S, CALLS_PER_TICK))
        for index, at_s in zip(chosen, times, strict=True):
            city = world.cities[int(index) % len(world.cities)]
            model = models[int(index) // len(world.cities)]
            num_prompt, num_output = lengths[int(generator.integers(len(lengths)))]
            sessions = recent[model, city.pop]
            continues = bool(sessions) and generator.random() < CONTINUES
            session = sessions[int(generator.integers(len(sessions)))] if continues else f"s{len(found)}"
            recent[model, city.pop] = [*sessions, session][-20:]
            is_eu_only = city.country in _EU and generator.random() < EU_SHARE
            found.append(
                SampledCall(
                    tick * TICK_S + float(at_s), tick, model, city.pop, num_prompt, max(1, num_output), session,
                    continues, is_eu_only,
                )
            )  # fmt: skip
    return found


class CallSimulation:
    """Runs the calls of a day with one strategy."""

    def __init__(self, world: World, day: Day, strategy: str) -> None:
        self.world, self.day, self.strategy = world, day, strategy
        pops = [REGION] * len(world.node_pops) if strategy == "one region" else world.node_pops
        self.nodes = [SimulatedNode(number, pop) for number, pop in enumerate(pops)]
        self.by_pop: dict[str, list[SimulatedNode]] = defaultdict(list)
        for node in self.nodes:
            self.by_pop[node.pop].append(node)
        self.health = NodeHealth()
        self.served: dict[str, int] = {}  # session -> node that has its prefix
        self.result = CallResult(strategy)
        self.residency = Residency((make_rule([], ["eu"]),))
        self.country = {city.pop: city.country for city in world.cities}
        self.turn = 0
        self.tick = -1
        self.hot: dict[str, list[SimulatedNode]] = {}
        self.thinning = 1.0

    def run(self, calls: Sequence[SampledCall]) -> CallResult:
        mean_tokens = sum(call.num_prompt + call.num_output for call in calls) / len(calls)
        work: dict[int, float] = defaultdict(float)
        for call in calls:
            if call.tick != self.tick:
                self._begin_tick(call.tick, mean_tokens)
            self._serve(call)
        for node in self.nodes:
            if node.work:
                work[node.number] = node.work
        loads = np.array(list(work.values()))
        self.result.load_spread = float(np.percentile(loads, 95) / loads.mean())
        return self.result

    def _begin_tick(self, tick: int, mean_tokens: float) -> None:
        """Read the replicas of the tick. Simulated nodes are slower than real ones by `thinning`."""
        self.tick = tick
        self.hot = defaultdict(list)
        for node, loaded in zip(self.nodes, self.day.loaded[tick], strict=True):
            node.cold = {model: at_s for model, at_s in node.cold.items() if at_s > (tick - 1) * TICK_S}
            for model in loaded | node.cold.keys():
                self.hot[model].append(node)
        self.thinning = float(self.world.demand(tick).sum()) * TICK_S / (CALLS_PER_TICK * mean_tokens)

    def _lost(self, tick: int) -> frozenset[str]:
        return self.day.lost_pops if tick in OUTAGE_TICKS and self.strategy != "one region" else frozenset()

    def _serve(self, call: SampledCall) -> None:
        lost = self._lost(call.tick)
        entry = next(pop for pop in (call.pop, *self.world.neighbors[call.pop]) if pop not in lost)
        user_s = self.world.round_trips[call.pop, entry]
        if self.strategy == "one region":
            entry, user_s = REGION, self.world.round_trips[call.pop, REGION]
        candidates = self._candidates(call, entry, lost)
        result = self.result
        result.num_in_outage += call.tick in OUTAGE_TICKS
        result.num_continuing += call.continues
        chosen = self._choose(call, candidates)
        if chosen is None:
            result.failed += 1
            result.failed_in_outage += call.tick in OUTAGE_TICKS
            return
        node: SimulatedNode = chosen.link
        if call.is_eu_only and self.strategy == "Hearth" and self.country[node.pop] not in _EU:
            result.num_breaches += 1
        self._count_outage(call, node)
        wait_s = chosen.load_s
        if chosen.load_s:
            result.num_cold += 1
            self._load(call, node)
        model = self.world.models[call.model]
        is_hit = call.continues and self.served.get(call.session) == node.number
        result.num_hits += is_hit
        self.served[call.session] = node.number
        num_prompt = call.num_prompt * (1 - CACHED_PART * is_hit)
        queued = node.tokens_in_flight
        computed = num_prompt + call.num_output
        ttft_s = user_s + chosen.round_trip_s + wait_s + (queued + num_prompt) / model.tokens_per_s
        result.ttfts.append(ttft_s)
        result.ticks.append(call.tick)
        result.is_spiked.append(call.tick in SPIKE_TICKS and call.model.endswith(f"{SPIKED_MODEL:03d}"))
        node.queue_s += computed / model.tokens_per_s * self.thinning
        node.tokens_in_flight += int(computed)
        node.work += computed / model.tokens_per_s

    def _candidates(self, call: SampledCall, entry: str, lost: frozenset[str]) -> list[Candidate]:
        """Return the nodes that have the model, and those near the gateway that could load it."""
        model = self.world.models[call.model]
        hot = [node for node in self.hot[call.model] if node.pop not in lost]
        ids = {node.number for node in hot}
        near = [pop for pop in self.world.neighbors[entry][:NUM_COLD_POPS] if pop not in lost]
        if self.strategy == "one region":
            near = []
        cold = [node for pop in near for node in self.by_pop[pop][:2] if node.number not in ids]
        found = []
        for node in (*hot, *cold):
            node.advance(call.at_s)
            round_trip_s = self.world.round_trips[entry, node.pop]
            found.append(
                Candidate(
                    link=node, health=self.health, node_hash=hash_of(node.node_id), pop=node.pop, proven_pop=node.pop,
                    is_hot=node.number in ids, tokens_per_s=model.tokens_per_s, round_trip_s=round_trip_s,
                    load_s=0.0 if node.number in ids else load_s(model),
                )
            )  # fmt: skip
        return found

    def _choose(self, call: SampledCall, candidates: list[Candidate]) -> Candidate | None:
        if self.strategy in ("Hearth", "one region"):
            admits = None
            if call.is_eu_only and self.strategy == "Hearth":
                admits = lambda node: self.world.locations.admits(self.residency, node)  # noqa: E731
            key = affinity_key(_NAMESPACE, call.session.encode(), "")
            num_tokens = call.num_prompt + call.num_output
            found = place(key, candidates, now_s=call.at_s, num_tokens=num_tokens, admits=admits)
            return found.nodes[0] if found.nodes else None
        return self._choose_simply(call, candidates)

    def _choose_simply(self, call: SampledCall, candidates: list[Candidate]) -> Candidate | None:
        """The other strategies use the replicas of the nearest PoP that has any; the oracle knows queues and caches."""
        if call.is_eu_only:
            candidates = [each for each in candidates if self.country[each.pop] in _EU]
        hot = [each for each in candidates if each.is_hot]
        if not candidates:
            return None
        if self.strategy == "oracle":
            speed = self.world.models[call.model].tokens_per_s
            home = self.served.get(call.session) if call.continues else None

            def first_token_s(each: Candidate) -> float:
                saved = CACHED_PART * call.num_prompt if each.link.number == home else 0.0
                return float(each.round_trip_s + each.load_s + (each.link.tokens_in_flight - saved) / speed)

            return min(candidates, key=first_token_s)
        if not hot:
            return min(candidates, key=lambda each: each.load_s + each.round_trip_s)
        nearest_s = min(each.round_trip_s for each in hot)
        near = [each for each in hot if each.round_trip_s <= nearest_s]
        self.turn += 1
        if self.strategy == "round robin":
            return near[self.turn % len(near)]
        if self.strategy == "least loaded":
            return min(near, key=lambda each: each.link.tokens_in_flight)
        near.sort(key=lambda each: each.node_hash)
        key = int.from_bytes(hashlib.blake2b(call.session.encode(), digest_size=8).digest(), "big")
        return near[bisect.bisect([each.node_hash for each in near], key) % len(near)]

    def _load(self, call: SampledCall, node: SimulatedNode) -> None:
        """Load a model on a node for a call, with the node's policy of eviction."""
        held = [
            Holding(name, self.world.models[name].memory_bytes, reload_s=load_s(self.world.models[name]))
            for name in (self.day.loaded[call.tick][node.number] | node.cold.keys())
        ]
        plan = plan_load(Need(self.world.models[call.model].memory_bytes), held, Budget(NODE_BYTES))
        if isinstance(plan, LoadPlan):
            for evicted in plan.evicted:
                node.cold.pop(str(evicted), None)
                if node in self.hot[str(evicted)]:
                    self.hot[str(evicted)].remove(node)
        node.cold[call.model] = call.at_s
        self.hot[call.model].append(node)

    def _count_outage(self, call: SampledCall, node: SimulatedNode) -> None:
        """Add the expected failures at the beginning of the outage: of the calls that a sampled call stands for, those
        whose stream had begun when their node was lost, and those that were sent to two nodes of a lost PoP in the
        seconds before the gateways noticed."""
        if call.tick != OUTAGE_TICKS.start - 1 or node.pop not in self.day.lost_pops or self.strategy == "one region":
            return
        streamed_s = call.num_output * OUTPUT_S_PER_TOKEN
        # A retry may choose another node of the same PoP as long as the loss has not been noticed.
        self.result.failed_in_outage += (streamed_s + DETECTION_S) / TICK_S
        self.result.failed += (streamed_s + DETECTION_S) / TICK_S
