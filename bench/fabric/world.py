"""The simulated world: PoPs, nodes, models, and the demand of every PoP by the hour of its longitude."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bench.fabric.cities import City, cities
from gateway.nodes.geography import estimated_round_trip_s
from gateway.nodes.residency import Locations
from gateway.scaling.distances import find_neighbors
from gateway.scaling.inputs import ModelFacts

NUM_NODES = 5000
NUM_MODELS = 100
TASK = "text-generation"
NODE_BYTES = 120 << 30  # for weights and KV caches
DAY_S = 86_400.0
TICK_S = 1200.0
NUM_TICKS = int(DAY_S / TICK_S)
MEAN_DEMAND_TOKENS_PER_S = 3e7  # sum over PoPs and models, averaged over the day
MEAN_CALL_TOKENS = 2000.0
SPIKED_MODEL, SPIKE_FACTOR = 20, 10.0
SPIKE_TICKS = range(54, 57)  # 18:00 to 19:00 UTC
READ_BYTES_PER_S = 3e9  # read speed of a node's disk cache
START_S = 1.0


@dataclass(frozen=True)
class World:
    """Everything that does not change during a run."""

    cities: list[City]
    points: dict[str, tuple[float, float]]
    neighbors: dict[str, list[str]]
    round_trips: dict[tuple[str, str], float]  # seconds between two PoPs
    node_pops: list[str]
    models: dict[str, ModelFacts]
    shares: np.ndarray  # [model, PoP], parts of the whole demand, without waves
    locations: Locations

    @property
    def pops(self) -> list[str]:
        return [city.pop for city in self.cities]

    def demand(self, tick: int) -> np.ndarray:
        """Return the tokens per second of each model and PoP in one tick."""
        hours = tick * TICK_S / 3600 + np.array([city.longitude / 15 for city in self.cities])
        waves = 0.25 + 0.75 * np.clip(np.cos((hours - 15) / 24 * 2 * math.pi) * 0.5 + 0.5, 0, 1) ** 1.5
        demand = MEAN_DEMAND_TOKENS_PER_S * self.shares * (waves / 0.62)
        if tick in SPIKE_TICKS:
            demand[SPIKED_MODEL] *= SPIKE_FACTOR
        return np.asarray(demand)


def load_s(model: ModelFacts) -> float:
    """Return the seconds in which a node loads a model from its disk cache."""
    return START_S + model.memory_bytes / READ_BYTES_PER_S


def make_world(seed: int = 1) -> World:
    """Return the world: equal seeds give equal worlds."""
    generator = np.random.default_rng(seed)
    found = cities()
    pops = [city.pop for city in found]
    points = {city.pop: (city.latitude, city.longitude) for city in found}
    inhabitants = np.array([city.inhabitants for city in found])
    counts = np.maximum(3, np.floor(inhabitants / inhabitants.sum() * (NUM_NODES - 3 * len(found)))).astype(int) + 2
    while counts.sum() != NUM_NODES:
        counts[np.argmax(inhabitants)] += NUM_NODES - counts.sum()
    node_pops = [pop for pop, count in zip(pops, counts, strict=True) for _ in range(count)]
    sizes_gb = np.exp(generator.uniform(math.log(1.5), math.log(60), NUM_MODELS))
    models = {
        name: ModelFacts(name, TASK, int(size * 1.3e9), float(np.clip(26_000 * 16 / size, 4000, 80_000)))
        for name, size in zip((f"@cf/sim/model-{number:03d}" for number in range(NUM_MODELS)), sizes_gb, strict=True)
    }
    popularity = 1.0 / np.arange(1, NUM_MODELS + 1) ** 1.1
    shares = np.outer(popularity / popularity.sum(), inhabitants / inhabitants.sum())
    shares *= generator.lognormal(0.0, 0.5, shares.shape)  # regional preferences
    table = ",".join(f"{city.pop}={city.country}" for city in found)
    return World(
        cities=found,
        points=points,
        neighbors=find_neighbors(dict(points), pops),
        round_trips={
            (a, b): 0.0005 if a == b else estimated_round_trip_s(points[a], points[b]) for a in pops for b in pops
        },
        node_pops=node_pops,
        models=models,
        shares=shares / shares.sum(),
        locations=Locations.parse(table, pops[0], ""),
    )
