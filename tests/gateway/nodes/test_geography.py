"""Distances between PoPs: measured round trips replace those estimated from coordinates."""

from __future__ import annotations

import pytest

from gateway.nodes.geography import UNKNOWN_ROUND_TRIP_S, Geography, distance_km, estimated_round_trip_s
from tenants.residency import parse_locations

LISBON, SYDNEY = (38.7, -9.1), (-33.9, 151.2)


def test_distance_is_the_length_of_the_great_circle():
    assert distance_km(LISBON, LISBON) == 0
    assert distance_km(LISBON, SYDNEY) == pytest.approx(18_180, rel=0.01)
    assert distance_km((0.0, 0.0), (0.0, 180.0)) == pytest.approx(20_015, rel=0.01)


def test_round_trip_is_estimated_from_the_operators_coordinates_or_the_airport_code():
    geography = Geography("lis", parse_locations("lab=PT@38.7/-9.1,dark=DE"))
    assert geography.round_trip_s("lis") < geography.round_trip_s("lab") < 0.002
    assert 0.02 < geography.round_trip_s("fra") < 0.05
    assert geography.round_trip_s("syd2") == pytest.approx(estimated_round_trip_s(LISBON, SYDNEY), rel=0.01)
    assert geography.round_trip_s("dark") == geography.round_trip_s("unheard-of") == UNKNOWN_ROUND_TRIP_S


def test_measured_round_trip_replaces_the_estimate():
    geography = Geography("lis", {})
    geography.measure({"fra": 0.031})
    assert geography.round_trip_s("fra") == 0.031
    geography.measure({})
    assert geography.round_trip_s("fra") != 0.031


def test_round_trip_that_is_shorter_than_light_needs_is_ignored():
    geography = Geography("lis", {})
    geography.measure({"fra": 0.001, "opo": 0.001, "unheard-of": 0.001})
    assert geography.measured.keys() == {"opo", "unheard-of"}
    assert geography.round_trip_s("fra") > 0.02
