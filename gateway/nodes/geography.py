"""Geography: the coordinates of PoPs, and the round trips from this gateway to them.

A PoP's coordinates come from the operator's table (`HEARTH_LOCATIONS`), or else from its airport code. A round trip is
measured over the connections to the PoP's nodes, or else estimated from the distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gateway.nodes.known_pops import find_known_pop
from tenants.residency import UNKNOWN_LOCATION, Location

UNKNOWN_ROUND_TRIP_S = 0.050  # to another PoP without coordinates
SAME_POP_ROUND_TRIP_S = 0.0005

_EARTH_RADIUS_KM = 6371.0
_KM_PER_S = 200_000.0  # light in glass
_DETOUR = 1.5  # length of cables by that of the straight way
_OVERHEAD_S = 0.001
_CITY_KM = 100.0
_MIN_CHANGE_S = 0.001  # smaller changes of a round trip are ignored, and those below this share of it
_MIN_CHANGE = 0.2

Point = tuple[float, float]
"""Latitude and longitude in degrees."""


class Geography:
    """The points of all PoPs. `pop` is the gateway's own, `by_pop` the operator's table."""

    def __init__(self, pop: str, by_pop: Mapping[str, Location]) -> None:
        self._pop = pop
        self._by_pop = by_pop
        self._estimated: dict[str, float] = {}
        self._shortest: dict[str, float] = {}
        self._measured: dict[str, float] = {}
        self.version = 0  # number of changes of round trips

    def point_of(self, pop: str) -> Point | None:
        """Return the coordinates of a PoP, or None if they are unknown."""
        location = self._by_pop.get(pop, UNKNOWN_LOCATION)
        if location.latitude is not None and location.longitude is not None:
            return location.latitude, location.longitude
        known = find_known_pop(pop)
        return None if known is None else (known.latitude, known.longitude)

    def measure(self, round_trips: Mapping[str, float]) -> None:
        """Replace the measured round trips, in seconds by PoP. Those that are shorter than light needs are ignored: the
        nodes are not where their PoP is, as when several PoPs run on one machine. Small changes are ignored too."""
        measured = {pop: s for pop, s in round_trips.items() if s >= self._shortest_round_trip_s(pop)}
        if measured.keys() != self._measured.keys() or any(
            abs(s - self._measured[pop]) > max(_MIN_CHANGE_S, _MIN_CHANGE * s) for pop, s in measured.items()
        ):
            self._measured = measured
            self.version += 1

    def _shortest_round_trip_s(self, pop: str) -> float:
        if pop not in self._shortest:
            own, other = self.point_of(self._pop), self.point_of(pop)
            length_km = 0.0 if own is None or other is None else distance_km(own, other)
            # Coordinates are those of a city, so the nodes can be nearer.
            self._shortest[pop] = 2 * max(0.0, length_km - _CITY_KM) / _KM_PER_S
        return self._shortest[pop]

    @property
    def measured(self) -> Mapping[str, float]:
        """The measured round trips, in seconds by PoP."""
        return self._measured

    def round_trip_s(self, pop: str) -> float:
        """Return the measured or else the estimated round trip to a PoP."""
        measured = self._measured.get(pop)
        if measured is not None:
            return measured
        estimated = self._estimated.get(pop)
        if estimated is None:
            estimated = self._estimated[pop] = self._estimate(pop)
        return estimated

    def _estimate(self, pop: str) -> float:
        if pop == self._pop:
            return SAME_POP_ROUND_TRIP_S
        own, other = self.point_of(self._pop), self.point_of(pop)
        return UNKNOWN_ROUND_TRIP_S if own is None or other is None else estimated_round_trip_s(own, other)


def estimated_round_trip_s(a: Point, b: Point) -> float:
    """Return the usual round trip between two points, from the length of the great circle."""
    return _OVERHEAD_S + 2 * _DETOUR * distance_km(a, b) / _KM_PER_S


def distance_km(a: Point, b: Point) -> float:
    """Return the length of the great circle between two points."""
    (latitude_a, longitude_a), (latitude_b, longitude_b) = (map(math.radians, point) for point in (a, b))
    half_chord = (
        math.sin((latitude_b - latitude_a) / 2) ** 2
        + math.cos(latitude_a) * math.cos(latitude_b) * math.sin((longitude_b - longitude_a) / 2) ** 2
    )
    return 2 * _EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, half_chord)))
