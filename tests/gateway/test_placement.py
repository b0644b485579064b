"""Placement: readiness and distance come first, equal calls prefer one node, and overloaded nodes are ranked last."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.placement import LOAD_FLOOR_TOKENS, affinity_key, rank_nodes

NAMESPACE = b"n" * 32


@dataclass(frozen=True)
class Place:
    node_id: str
    pop: str = "lis"
    is_hot: bool = True
    is_loading: bool = False
    load_tokens: int = 0


def key(text: str) -> bytes:
    return affinity_key(NAMESPACE, None, text)


places = st.lists(
    st.builds(
        Place,
        st.uuids().map(str),
        st.sampled_from(["lis", "fra", "gru"]),
        st.booleans(),
        st.booleans(),
        st.integers(0, 10**7),
    ),
    unique_by=lambda place: place.node_id,
)


@given(places, st.binary(min_size=1, max_size=16))
def test_ranking_contains_every_node_once(known: list[Place], affinity: bytes):
    assert sorted(rank_nodes(affinity, "lis", known), key=id) == sorted(known, key=id)


@given(places, st.binary(min_size=1, max_size=16), st.randoms())
def test_ranking_does_not_depend_on_the_order_of_nodes(known: list[Place], affinity: bytes, random):
    shuffled = random.sample(known, len(known))
    assert rank_nodes(affinity, "lis", known) == rank_nodes(affinity, "lis", shuffled)


def test_readiness_precedes_distance_in_ranking():
    known = [
        Place("absent", is_hot=False),
        Place("loading", is_hot=False, is_loading=True),
        Place("hot far", pop="fra"),
        Place("hot near"),
    ]
    assert [place.node_id for place in rank_nodes(key("x"), "lis", known)] == [
        "hot near",
        "hot far",
        "loading",
        "absent",
    ]


def test_session_prefers_one_node_for_any_prompt():
    known = [Place(f"n{i}") for i in range(5)]
    session = affinity_key(NAMESPACE, b"session-7", "Hello")
    assert session == affinity_key(NAMESPACE, b"session-7", "Something else")
    assert rank_nodes(session, "lis", known)[0] == rank_nodes(session, "lis", known)[0]


def test_equal_openings_prefer_one_node_within_a_namespace_only():
    shared = "You are a helpful assistant. " * 10
    assert key(shared + "a") == key(shared + "b")
    assert key("a") != affinity_key(b"m" * 32, None, "a")
    assert affinity_key(NAMESPACE, b"a", "a") != key("a")


def test_different_calls_spread_evenly():
    known = [Place(f"n{i}") for i in range(4)]
    first = Counter(rank_nodes(key(str(i)), "lis", known)[0].node_id for i in range(2000))
    assert all(350 < count < 650 for count in first.values())


def test_removed_node_moves_only_its_own_calls():
    known = [Place(f"n{i}") for i in range(4)]
    keys = [key(str(i)) for i in range(200)]
    before = [rank_nodes(k, "lis", known)[0] for k in keys]
    after = [rank_nodes(k, "lis", known[1:])[0] for k in keys]
    assert all(a == b for a, b in zip(after, before, strict=True) if b != known[0])


def test_overloaded_node_is_ranked_last_in_its_tier():
    busy = Place("busy", load_tokens=10 * LOAD_FLOOR_TOKENS)
    known = [busy, *(Place(f"n{i}") for i in range(3))]
    assert all(rank_nodes(key(str(i)), "lis", known)[-1] == busy for i in range(50))


def test_session_stays_on_a_lightly_loaded_node():
    quiet = [Place("a"), Place("b")]
    chosen = rank_nodes(key("x"), "lis", quiet)[0]
    known = [Place(p.node_id, load_tokens=LOAD_FLOOR_TOKENS if p == chosen else 0) for p in quiet]
    assert rank_nodes(key("x"), "lis", known)[0].node_id == chosen.node_id
