"""The node snapshot: presence says which nodes exist, links which can be reached; malformed presence is ignored."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.nodes.snapshot import Nodes
from storage.errors import StoreUnavailable
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

    async def present(self, kind: str) -> dict[str, bytes]:
        assert kind == "nodes"
        if self.is_unavailable:
            raise StoreUnavailable("away")
        return dict(self.payloads)

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
