"""Order of PoPs by distance, from their coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.nodes.geography import Point, distance_km


def find_neighbors(points: Mapping[str, Point | None], hosts: Iterable[str]) -> dict[str, list[str]]:
    """Return, for each PoP of `points`, the PoPs of `hosts`, nearest first. PoPs without coordinates come last."""
    names = sorted(hosts)

    def order(pop: str) -> list[str]:
        here = points[pop]

        def key(other: str) -> tuple[bool, float, str]:
            there = points.get(other)
            if other == pop or here is None or there is None:
                return other != pop, 0.0, other
            return False, distance_km(here, there), other

        return sorted(names, key=key)

    return {pop: order(pop) for pop in points}
