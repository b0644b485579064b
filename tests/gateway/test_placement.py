"""Placement: filters, the predicted time to the first token, bounded-load hashing on affinity, and the explanation."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway import placement
from gateway.nodes.candidate import Candidate, Exclusion, hash_of
from gateway.nodes.health import NodeHealth
from gateway.placement import DEFAULT_POLICY, FILTERS, Placement, affinity_key

NAMESPACE = b"n" * 32
FLOOR_TOKENS = DEFAULT_POLICY.load_floor_tokens
NOW_S = 1000.0


@dataclass
class FakeLink:
    node_id: str
    tokens_in_flight: int = 0


def candidate(node_id: str, *, pop: str = "lis", tokens: int = 0, **fields) -> Candidate:
    return Candidate(
        link=FakeLink(node_id), node_hash=hash_of(node_id), pop=pop, proven_pop=pop, reported_tokens=tokens,
        **{"health": NodeHealth(), "tokens_per_s": 10_000.0, **fields},
    )  # fmt: skip


def key(text: str) -> bytes:
    return affinity_key(NAMESPACE, None, text)


def place(affinity: bytes, nodes: list[Candidate], **options) -> Placement:
    return placement.place(affinity, nodes, now_s=NOW_S, **options)


def ids(found: Placement) -> list[str]:
    return [node.node_id for node in found.nodes]


def first_ids(nodes: list[Candidate], num_keys: int = 400) -> Counter[str]:
    return Counter(ids(place(key(str(number)), nodes))[0] for number in range(num_keys))


candidates = st.lists(
    st.builds(
        candidate,
        st.uuids().map(str),
        pop=st.sampled_from(["lis", "fra", "gru"]),
        tokens=st.integers(0, 10**7),
        load_s=st.sampled_from([0.0, 5.0, 10.0]),
        round_trip_s=st.floats(0, 0.3),
        limit=st.sampled_from(["", "", "too hot"]),
        exclusion=st.sampled_from([None, None, Exclusion("draining", "the node is draining")]),
    ),
    unique_by=lambda node: node.node_id,
)
affinities = st.binary(min_size=16, max_size=16)


@given(candidates, affinities)
def test_every_node_is_either_ranked_or_removed_once(nodes: list[Candidate], affinity: bytes):
    found = place(affinity, nodes)
    removed = [each.node_id for name in FILTERS for each in found.removed.get(name, ())]
    assert sorted(ids(found) + removed) == sorted(node.node_id for node in nodes)
    assert len(found.nodes) == len(found.predicted_s) == len(found.demotions) == len(found.ranked())


@given(candidates, affinities, st.randoms())
def test_placement_does_not_depend_on_the_order_of_nodes(nodes: list[Candidate], affinity: bytes, random):
    shuffled = random.sample(nodes, len(nodes))
    assert ids(place(affinity, nodes)) == ids(place(affinity, shuffled))


def test_ready_near_node_precedes_far_node_and_node_that_must_load_the_model():
    nodes = [
        candidate("absent", is_hot=False, load_s=10.0),
        candidate("loading", is_hot=False, is_loading=True, load_s=5.0),
        candidate("ready far", pop="fra", round_trip_s=0.03),
        candidate("ready near"),
    ]
    assert ids(place(key("x"), nodes)) == ["ready near", "ready far", "loading", "absent"]


def test_idle_far_node_precedes_near_node_whose_queue_takes_longer_than_the_round_trip():
    nodes = [candidate("near", tokens=100_000), candidate("far", pop="fra", round_trip_s=0.03)]
    assert ids(place(key("x"), nodes)) == ["far", "near"]
    assert ids(place(key("x"), [candidate("near", tokens=1000), nodes[1]])) == ["near", "far"]


def test_cold_node_precedes_ready_node_whose_queue_takes_longer_than_loading():
    nodes = [candidate("ready", tokens=1_000_000), candidate("cold", is_hot=False, load_s=10.0)]
    assert ids(place(key("x"), nodes)) == ["cold", "ready"]


def test_session_prefers_one_node_for_any_prompt():
    nodes = [candidate(f"n{number}") for number in range(5)]
    session = affinity_key(NAMESPACE, b"session-7", "Hello")
    assert session == affinity_key(NAMESPACE, b"session-7", "Something else")
    assert len({ids(place(session, nodes))[0] for _ in range(3)}) == 1


def test_equal_openings_prefer_one_node_within_a_namespace_only():
    shared = "You are a helpful assistant. " * 10
    assert key(shared + "a") == key(shared + "b")
    assert key("a") != affinity_key(b"m" * 32, None, "a")
    assert affinity_key(NAMESPACE, b"a", "a") != key("a")


def test_different_calls_spread_evenly():
    counts = first_ids([candidate(f"n{number}") for number in range(4)], 2000)
    assert all(350 < count < 650 for count in counts.values())


def test_removed_node_moves_only_its_own_calls():
    nodes = [candidate(f"n{number}") for number in range(4)]
    keys = [key(str(number)) for number in range(200)]
    before = [ids(place(each, nodes))[0] for each in keys]
    after = [ids(place(each, nodes[1:]))[0] for each in keys]
    assert all(a == b for a, b in zip(after, before, strict=True) if b != "n0")


def test_node_over_its_share_of_queued_tokens_is_ranked_last():
    busy = candidate("busy", tokens=10 * FLOOR_TOKENS)
    nodes = [busy, *(candidate(f"n{number}") for number in range(3))]
    assert all(ids(place(key(str(number)), nodes))[-1] == "busy" for number in range(50))


def test_session_stays_on_a_lightly_loaded_node():
    chosen = ids(place(key("x"), [candidate("a"), candidate("b")]))[0]
    nodes = [candidate(name, tokens=FLOOR_TOKENS if name == chosen else 0) for name in "ab"]
    assert ids(place(key("x"), nodes))[0] == chosen


def test_tokens_sent_since_the_last_report_count_as_queued():
    node = candidate("n1", tokens=100)
    node.link.tokens_in_flight = 20_000
    assert place(key("x"), [node]).predicted_s == [2.0]


def test_failing_and_overheated_nodes_are_removed_unless_they_are_the_majority():
    failing = NodeHealth()
    for _ in range(3):
        failing.record_failure(NOW_S)
    nodes = [candidate("ejected", health=failing), candidate("hot", limit="92 degrees"), candidate("good")]
    found = place(key("x"), nodes)
    assert ids(found) == ["good"]
    assert {node.node_id for node in found.reserve} == {"ejected", "hot"}
    assert [each.node_id for each in found.removed["failing"]] == ["ejected"]
    assert found.removed["limits"][0].reason == "92 degrees"
    assert ids(place(key("x"), nodes[:1])) == ["ejected"]
    assert set(ids(place(key("x"), [nodes[1], candidate("hot too", limit="93 degrees")]))) == {"hot", "hot too"}


def test_residency_removes_nodes_of_other_locations_even_if_none_remains():
    nodes = [candidate("n1"), candidate("n2", pop="fra")]
    assert ids(place(key("x"), nodes, admits=lambda node: node.proven_pop == "fra")) == ["n2"]
    found = place(key("x"), nodes, admits=lambda _node: False)
    assert (ids(found), len(found.removed["residency"])) == ([], 2)


def test_node_in_slow_start_gets_a_growing_share_of_the_calls():
    health = NodeHealth()
    health.start_slowly(NOW_S)
    nodes = [candidate("new", health=health), candidate("old")]

    def share_after(seconds: float) -> float:
        found = [placement.place(key(str(i)), nodes, now_s=NOW_S + seconds).nodes[0].node_id for i in range(1000)]
        return found.count("new") / len(found)

    assert share_after(0.0) < 0.05
    assert 0.2 < share_after(5.0) < 0.3
    assert 0.45 < share_after(10.0) < 0.55


def test_node_whose_first_events_are_late_is_not_preferred_until_it_recovers():
    health = NodeHealth()
    for _ in range(10):
        health.record_first_event(2.0, NOW_S)
    nodes = [candidate("late", health=health), candidate("n1"), candidate("n2")]
    assert all(ids(place(key(str(number)), nodes))[-1] == "late" for number in range(50))
    later = [placement.place(key(str(i)), nodes, now_s=NOW_S + 60).nodes[0].node_id for i in range(100)]
    assert "late" in later


def test_explanation_states_prediction_and_reason_of_each_node():
    nodes = [
        candidate("n1"),
        candidate("far", pop="fra", round_trip_s=0.03, tokens=1000),
        candidate("gone", exclusion=Exclusion("reachable", "not connected")),
    ]
    found = place(key("x"), nodes)
    first, second = found.ranked()
    assert (first.tier, first.predicted_s) == (1, 0.0)
    assert first.reason == "model is ready; PoP lis, round trip 0.0 ms; order by affinity"
    assert (second.tier, round(second.predicted_s, 3)) == (2, 0.13)
    assert second.reason.endswith("farther away, or the model must be loaded")
    assert placement.header_of(found) == "ranked=n1:0.000,far:0.130; removed=gone:reachable"


def test_placing_a_call_among_200_nodes_takes_less_than_a_millisecond():
    nodes = [candidate(f"n{number}", tokens=100 * number, round_trip_s=0.0005) for number in range(200)]
    times_s = []
    for number in range(200):
        started_s = time.thread_time()
        place(key(str(number)), nodes, num_tokens=500)
        times_s.append(time.thread_time() - started_s)
    assert sorted(times_s)[100] < 0.001
