"""The simulator of the fabric: its data, its caches and a part of its day."""

from __future__ import annotations

import random

import pytest

from bench.fabric import calls, schedule, svg
from bench.fabric.cities import NUM_POPS, cities
from bench.fabric.prefix_cache import run_strategies
from bench.fabric.traces import TracedCall
from bench.fabric.world import NODE_BYTES, make_world


def conversations() -> list[TracedCall]:
    """Return calls of 600 sessions of four turns each, which share one system prompt."""
    generator = random.Random(1)
    found = [
        TracedCall(
            turn * 30 + generator.random() * 30, 512 * (turn + 2), 100, [0, *(s * 10 + t for t in range(1, turn + 2))]
        )
        for s in range(1, 601)
        for turn in range(4)
    ]
    return sorted(found)


def test_pops_are_distinct_cities_on_earth():
    found = cities()
    assert len({city.pop for city in found}) == NUM_POPS
    assert all(abs(city.latitude) <= 70 and abs(city.longitude) <= 180 and city.inhabitants > 0 for city in found)
    assert all(len(city.country) == 2 for city in found)


def test_placement_finds_most_prefixes_that_one_cache_would_find():
    results = {each.strategy: each for each in run_strategies(conversations(), 512, 1 << 40)}
    whole = results["one unlimited cache"].hit_ratio
    assert results["Hearth"].hit_ratio >= 0.85 * whole
    assert results["Hearth"].load_spread <= 1.3
    assert results["round robin"].hit_ratio < 0.6 * whole


def test_equal_calls_give_equal_results():
    some = conversations()[:300]
    assert run_strategies(some, 512, 100) == run_strategies(some, 512, 100)


def test_plots_are_xml_with_escaped_names():
    from xml.etree import ElementTree

    for text in (svg.bars("a<b", "ms", {"x&y": (1.0, 2.0)}, ("p", "q")), svg.lines("t", "%", {"s": [1.0, 2.0, 0.0]})):
        assert ElementTree.fromstring(text).tag.endswith("svg")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_part_of_a_day_keeps_residency_and_serves_nearly_all_calls_in_an_outage(monkeypatch: pytest.MonkeyPatch):
    for module in (schedule, calls):
        monkeypatch.setattr(module, "NUM_TICKS", 5)
        monkeypatch.setattr(module, "OUTAGE_TICKS", range(2, 4))
    monkeypatch.setattr(schedule, "NUM_WARM_UP", 2)
    world = make_world()
    day = schedule.make_day(world, has_outage=True)
    assert len(day.lost_pops) == 33
    for loaded in day.loaded[-1]:
        assert sum(world.models[model].memory_bytes for model in loaded) <= NODE_BYTES
    sampled = calls.sample_calls(world, [(1000, 100), (300, 30)])
    result = calls.CallSimulation(world, day, "Hearth").run(sampled)
    assert result.num_breaches == 0
    assert result.failed_in_outage / result.num_in_outage < 0.001
