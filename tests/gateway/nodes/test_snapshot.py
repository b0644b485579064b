"""The node snapshot: presence says which nodes exist, links which can be reached; malformed presence is ignored."""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from engine.protocol.status import NodeStatus, ReplicaStatus
from gateway.nodes.connections import NodeLink
from gateway.nodes.presence import FAR_INTERVAL, PresenceReader
from gateway.nodes.snapshot import MAX_HOSTS, MAX_LOADERS, Nodes
from storage.errors import StoreUnavailable
from tenants.residency import Residency, make_rule
from tests.fakes.node import FakeNode
from tests.gateway.process import NOWHERE, PARROT, cards, fake_node
from tests.service_keys import service_keys
from tests.waiting import wait_until

CARD = {card.name: card for card in cards()}


class Presence:
    """Replaces Redis: the test sets the present nodes."""

    def __init__(self) -> None:
        self.payloads: dict[str, bytes] = {}
        self.is_unavailable = False
        self.num_read = 0

    async def present_ids(self, kind: str) -> list[str]:
        assert kind == "nodes"
        if self.is_unavailable:
            raise StoreUnavailable("unavailable")
        return list(self.payloads)

    async def read_payloads(self, _kind: str, ids: Sequence[str]) -> list[bytes | None]:
        self.num_read += len(ids)
        return [self.payloads.get(node_id) for node_id in ids]

    def put(self, node: FakeNode) -> None:
        self.payloads[node.node_id] = msgspec.json.encode(node.status())


@pytest.fixture
def node(short_tmp_path: Path) -> Iterator[FakeNode]:
    fake = fake_node("n1", short_tmp_path, "").start()
    yield fake
    fake.stop()


@pytest.fixture
def presence() -> Presence:
    return Presence()


@pytest.fixture
async def nodes(presence: Presence) -> AsyncIterator[Nodes]:
    known = Nodes(presence, identity=service_keys().identity("gateway/gateway"), sender="g")  # type: ignore[arg-type]
    yield known
    await known.close()


async def test_connected_node_is_a_candidate_for_its_models(nodes: Nodes, presence: Presence, node):
    presence.put(node)
    await nodes.refresh()
    assert nodes.candidates(CARD[PARROT]) == ()
    await wait_until(lambda: nodes.num_reachable == 1)
    (candidate,) = nodes.candidates(CARD[PARROT])
    assert (candidate.node_id, candidate.is_hot) == ("n1", True)
    assert nodes.candidates(CARD[NOWHERE]) == ()
    assert PARROT in nodes.hot_models()


async def test_node_with_another_model_revision_is_no_candidate(nodes: Nodes, presence: Presence, node):
    presence.put(node)
    await nodes.refresh()
    await wait_until(lambda: nodes.num_reachable == 1)
    assert nodes.candidates(msgspec.structs.replace(CARD[PARROT], revision="f" * 64)) == ()


@pytest.mark.parametrize("state", ["draining", "failed"])
async def test_draining_or_failed_node_is_no_candidate(nodes: Nodes, presence: Presence, node, state: str):
    node.state = state
    presence.put(node)
    await nodes.refresh()
    await wait_until(lambda: nodes.num_reachable == 1)
    assert nodes.candidates(CARD[PARROT]) == ()
    assert nodes.hot_models() == []


async def test_load_is_the_larger_of_reported_and_sent_tokens(nodes: Nodes, presence: Presence, node):
    node.queued_tokens = 100
    presence.put(node)
    await nodes.refresh()
    await wait_until(lambda: nodes.num_reachable == 1)
    (candidate,) = nodes.candidates(CARD[PARROT])
    assert candidate.load_tokens == 100
    candidate.link.tokens_in_flight = 500
    assert candidate.load_tokens == 500


async def test_connected_node_remains_known_while_presence_is_empty_or_unavailable(
    nodes: Nodes, presence: Presence, node
):
    presence.put(node)
    await nodes.refresh()
    await wait_until(lambda: nodes.num_reachable == 1)
    presence.payloads.clear()
    await nodes.refresh()
    presence.is_unavailable = True
    with pytest.raises(StoreUnavailable):
        await nodes.refresh()
    assert len(nodes.candidates(CARD[PARROT])) == 1


async def test_absent_and_disconnected_node_is_removed(nodes: Nodes, presence: Presence, node):
    presence.put(node)
    await nodes.refresh()
    await wait_until(lambda: nodes.num_reachable == 1)
    presence.payloads.clear()
    node.die()
    await wait_until(lambda: nodes.num_reachable == 0)
    await nodes.refresh()
    assert nodes.hot_models() == []


async def test_malformed_presence_is_ignored(nodes: Nodes, presence: Presence, node):
    presence.put(node)
    good = presence.payloads["n1"]
    presence.payloads |= {
        "garbage": b"\xff\x00",
        "empty": b"{}",
        "impostor": good,
        "elsewhere": good.replace(b'"n1"', b'"elsewhere"').replace(b"unix://", b"file://"),
    }
    await nodes.refresh()
    await wait_until(lambda: nodes.num_reachable == 1)
    assert [candidate.node_id for candidate in nodes.candidates(CARD[PARROT])] == ["n1"]


class Fleet(Presence):
    """The presence of many nodes that accept no connections."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        for number in range(num_nodes):
            status = NodeStatus(node_id=f"n{number}", pop="local", address="unix:///nowhere.sock")
            self.payloads[status.node_id] = msgspec.json.encode(status)

    def change(self, node_id: str) -> None:
        status = NodeStatus(node_id=node_id, pop="local", address="unix:///nowhere.sock", num_calls=7)
        self.payloads[node_id] = msgspec.json.encode(status)


async def test_each_refresh_reads_only_a_part_of_a_large_fleet_and_reads_all_in_time():
    fleet = Fleet(1000)
    reader = PresenceReader(fleet, lambda node_id: float(node_id[1:]))  # type: ignore[arg-type]  # a fake store
    changed, absent = await reader.read()
    assert (len(changed), absent) == (1000, set())
    fleet.num_read = 0
    fleet.change("n0")
    fleet.change("n999")
    changed, _ = await reader.read()
    assert "n0" in changed
    assert fleet.num_read < 200
    found = set(changed)
    for _ in range(FAR_INTERVAL):
        found |= (await reader.read())[0].keys()
    assert found == {"n0", "n999"}


async def test_departed_and_new_nodes_of_a_large_fleet_are_noticed():
    fleet = Fleet(1000)
    reader = PresenceReader(fleet, lambda _node_id: 0.0)  # type: ignore[arg-type]  # a fake store
    await reader.read()
    del fleet.payloads["n999"]
    fleet.change("new")
    found, gone = set(), set()
    for _ in range(FAR_INTERVAL + 1):
        changed, absent = await reader.read()
        found |= changed.keys()
        gone |= absent
    assert (found, gone) == ({"new"}, {"n999"})


async def test_candidates_are_bounded_and_those_of_restricted_calls_are_in_their_region(presence: Presence):
    nodes = Nodes(presence, identity=service_keys().identity("gateway/gateway"), sender="g")  # type: ignore[arg-type]
    card = CARD[PARROT]
    replica = ReplicaStatus(model=card.name, revision=card.revision, state="ready")
    for number in range(300):
        has_model = number < 250
        status = NodeStatus(
            node_id=f"n{number}", pop="fra" if number % 10 else "lis", address="unix:///nowhere.sock",
            replicas=(replica,) if has_model else (),
        )  # fmt: skip
        presence.payloads[status.node_id] = msgspec.json.encode(status)
    with mock.patch.object(NodeLink, "is_open", property(lambda _link: True)):
        await nodes.refresh()
        found = nodes.candidates(card)
        assert (sum(node.is_hot for node in found), len(found)) == (MAX_HOSTS, MAX_HOSTS + MAX_LOADERS)
        residency = Residency((make_rule(["PT"]),))
        inside = nodes.candidates(card, residency, lambda _residency, node: node.pop == "lis")
        assert {node.pop for node in inside} == {"lis"}
        assert sum(node.is_hot for node in inside) == 25
        assert len(nodes.all_candidates(card)) == 300
        assert nodes.num_reachable == 300
    await nodes.close()
