"""Simulate the fabric with the real placement, replica policy and scaling plan on a virtual clock.

    HEARTH_TEST_DATA=… python -m bench.fabric [--docs docs]

Writes docs/fabric_simulation.md and plots in docs/images in about three minutes on two cores. Equal code gives equal
files.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

from bench.fabric import svg
from bench.fabric.calls import CALLS_PER_TICK, CallResult, CallSimulation, sample_calls
from bench.fabric.prefix_cache import CacheResult, run_strategies
from bench.fabric.schedule import Day, make_day
from bench.fabric.traces import BLOCK_TOKENS, azure_lengths, mooncake_conversation
from bench.fabric.world import NODE_BYTES, NUM_MODELS, NUM_NODES, NUM_TICKS, TICK_S, World, make_world

STRATEGIES = ("Hearth", "one region", "round robin", "least loaded", "consistent hashing", "oracle")
USD_PER_DEVICE_HOUR = 3.0
NODE_BLOCKS = 8000  # blocks of 512 tokens in the memory and the host tier of one node

_state: tuple[World, Day] | None = None


def run_strategy(strategy: str) -> CallResult:
    """Run one strategy in a process that was forked after the day was made."""
    assert _state is not None
    world, day = _state
    return CallSimulation(world, day, strategy).run(sample_calls(world, azure_lengths()))


def cache_results(max_blocks: int) -> list[CacheResult]:
    return run_strategies(mooncake_conversation(), BLOCK_TOKENS, max_blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    folder = parser.parse_args().docs
    global _state
    world = make_world()
    with multiprocessing.Pool(1) as pool:
        caches = pool.map_async(cache_results, [1 << 60, NODE_BLOCKS])
        _state = world, make_day(world, has_outage=True)
        unlimited, limited = caches.get()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = dict(zip(STRATEGIES, pool.map(run_strategy, STRATEGIES, chunksize=1), strict=True))
    write(folder, _state[1], results, unlimited, limited)


def write(
    folder: Path, day: Day, results: dict[str, CallResult], unlimited: list[CacheResult], limited: list[CacheResult]
) -> None:
    """Write the page and its plots."""
    ttfts = {name: (1000 * each.percentile(50), 1000 * each.percentile(95)) for name, each in results.items()}
    hits = {each.strategy: (100 * each.hit_ratio,) for each in unlimited}
    share = {name: values / NUM_NODES / NODE_BYTES * 100 for name, values in (
        ("autoscaler", day.planned_bytes), ("oracle", day.oracle_bytes),
    )}  # fmt: skip
    static = [day.static_bytes / NUM_NODES / NODE_BYTES * 100] * NUM_TICKS
    memory = {name: list(each) for name, each in share.items()} | {"without autoscaling": static}
    hit_title = "Prefix hits, Mooncake conversations, 8 nodes"
    plots = {
        "fabric-ttft.svg": svg.bars("Time to first token of users in 330 cities", "ms", ttfts, ("median", "p95")),
        "fabric-hits.svg": svg.bars(hit_title, "% of blocks", hits, ("hits",)),
        "fabric-memory.svg": svg.lines("Memory of loaded models", "% of all nodes", memory),
    }
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for name, text in plots.items():
        (folder / "images" / name).write_text(text)
    (folder / "fabric_simulation.md").write_text(_page(day, results, unlimited, limited))


def _page(day: Day, results: dict[str, CallResult], unlimited: list[CacheResult], limited: list[CacheResult]) -> str:
    hearth, region = results["Hearth"], results["one region"]
    whole = unlimited[0].hit_ratio
    own = next(each for each in unlimited if each.strategy == "Hearth")
    freed = day.static_bytes * NUM_TICKS - day.planned_bytes.sum()
    freed_by_oracle = day.static_bytes * NUM_TICKS - day.oracle_bytes.sum()
    outage = hearth.failed_in_outage / max(1, hearth.num_in_outage)
    goals = [
        ("prefix hits of 8 nodes, of those of one unlimited cache", "≥ 85 %", f"{own.hit_ratio / whole:.1%}"),
        ("largest load of a node, by the mean", "≤ 1.3", f"{own.load_spread:.2f}"),
        ("failed calls in the hour in which 33 PoPs are lost", "< 0.1 %", f"{outage:.3%}"),
        ("calls outside their residency region", "0", str(hearth.num_breaches)),
        (
            "median time to first token, 330 PoPs against one region", "≤ −50 %",
            f"{hearth.percentile(50) / region.percentile(50) - 1:.0%}",
        ),
        ("idle device time freed, of that freed by an oracle", "≥ 95 %", f"{freed / freed_by_oracle:.1%}"),
    ]  # fmt: skip
    return (
        Path(__file__)
        .with_name("page.md")
        .read_text()
        .format(
            num_nodes=NUM_NODES,
            num_models=NUM_MODELS,
            tick_minutes=f"{TICK_S / 60:.0f}",
            calls_per_tick=CALLS_PER_TICK,
            goals="\n".join(f"| {name} | {goal} | {reached} |" for name, goal, reached in goals),
            calls="\n".join(_call_row(each) for each in results.values()),
            caches="\n".join(_cache_row(a, b) for a, b in zip(unlimited[1:], limited[1:], strict=True)),
            whole=f"{whole:.1%}",
            moves=f"{day.num_changes / (NUM_TICKS * TICK_S / 3600):.0f}",
            unplaced=day.num_unplaced,
            costs="\n".join(
                _cost_row(name, num_bytes)
                for name, num_bytes in (
                    ("without autoscaling (each PoP's daily maximum)", day.static_bytes),
                    ("autoscaler", float(day.planned_bytes.mean())),
                    ("oracle", float(day.oracle_bytes.mean())),
                )
            ),
        )
    )


def _cost_row(name: str, num_bytes: float) -> str:
    cost = num_bytes / NODE_BYTES * USD_PER_DEVICE_HOUR * 24
    return f"| {name} | {num_bytes / NUM_NODES / NODE_BYTES:.1%} | {cost:,.0f} USD |"


def _cache_row(unlimited: CacheResult, limited: CacheResult) -> str:
    return (
        f"| {unlimited.strategy} | {unlimited.hit_ratio:.1%} | {limited.hit_ratio:.1%} | {unlimited.load_spread:.2f} | "
        f"{1000 * unlimited.ttft_p50_s:.0f} ms | {1000 * unlimited.ttft_p95_s:.0f} ms |"
    )


def _call_row(result: CallResult) -> str:
    return (
        f"| {result.strategy} | {1000 * result.percentile(50):.0f} ms | {1000 * result.percentile(95):.0f} ms | "
        f"{1000 * result.percentile(95, lambda index: result.is_spiked[index]):.0f} ms | "
        f"{result.num_hits / max(1, result.num_continuing):.1%} | {result.load_spread:.2f} | {result.num_cold} |"
    )


if __name__ == "__main__":
    main()
