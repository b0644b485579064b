"""A call that ends its model's process is named and refused; whoever was beside it gets its answer (P20)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig
from engine.protocol.events import Event, Failed, Finished, Token, Usage
from engine.protocol.fingerprint import fingerprint_of
from engine.protocol.sampling import Sampling
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.wire import Execute
from engine.serving import replicas as replicas_module
from engine.serving import suspects as module
from engine.serving.calls import Calls
from engine.serving.replicas import Replicas
from engine.serving.suspects import Suspects, Suspicion, Turns
from tests.engine.node.wire_client import execute
from tests.fakes.local_rank import LocalZygote, TokenLoaders
from tests.fakes.rank import CRASH_TOKEN
from tests.fakes.runner import answer
from tests.fakes.task_models import FakeStore, HandClock
from tests.fakes.virtual_loop import run_virtually

MODEL = "a"


def asking(*prompt: int, max_tokens: int = 20, namespace: bytes = b"n" * 32, call_id: int = 1) -> Execute:
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    task = TextGeneration(prompt_token_ids=prompt, sampling=sampling)
    return execute(call_id, task, model=MODEL, revision="r", namespace=namespace, deadline_s=600.0)


def poison(namespace: bytes = b"n" * 32) -> Execute:
    return asking(CRASH_TOKEN, 1, 2, namespace=namespace)


# ── what is remembered ──


class House:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.suspects = Suspects(self.clock)  # type: ignore[arg-type]
        self.num_deaths = 0

    def die(self, asked: Execute, *, before: int = 0, after: int = 0, together: bool = False) -> Failed:
        self.num_deaths += not together
        return self.suspects.blame(asked, before, Usage(completion_tokens=after), self.num_deaths)[0]

    def look_at(self, asked: Execute) -> Suspicion | Failed | None:
        return self.suspects.look_at(asked)


def test_with_nothing_against_anyone_nobody_is_looked_at() -> None:
    house = House()
    assert house.look_at(asking(5)) is None
    house.die(poison())
    assert house.look_at(asking(5)) is None


def test_the_second_death_blocks_and_the_first_does_not() -> None:
    house = House()
    first = house.die(poison())
    assert (first.is_retryable, first.is_blocked, first.num_deaths) == (True, False, 1)
    suspicion = house.look_at(poison())
    assert isinstance(suspicion, Suspicion)
    second = house.die(poison(), before=suspicion.num_deaths)
    assert (second.is_retryable, second.is_blocked, second.num_deaths) == (False, True, 2)
    refused = house.look_at(poison())
    assert isinstance(refused, Failed)
    assert refused.is_blocked


def test_a_death_elsewhere_counts_as_one_here() -> None:
    house = House()
    retried = msgspec.structs.replace(poison(), num_deaths=1)
    suspicion = house.look_at(retried)
    assert isinstance(suspicion, Suspicion)
    assert house.die(retried, before=suspicion.num_deaths).is_blocked
    assert isinstance(house.look_at(msgspec.structs.replace(asking(9), num_deaths=module.MAX_DEATHS)), Suspicion)


def test_equal_calls_that_die_together_die_one_death() -> None:
    house = House()
    assert house.die(poison()).num_deaths == 1
    assert house.die(poison(), together=True).num_deaths == 1
    for _ in range(2):
        failed, num_explained = house.suspects.blame(poison(), 1, Usage(), ("the model", "r", 2))
        assert (failed.num_deaths, num_explained) == (2, 2)


def test_the_same_input_of_another_tenant_is_another_input() -> None:
    house = House()
    house.die(poison())
    house.die(poison(), before=1)
    assert house.look_at(poison(namespace=b"o" * 32)) is None
    task = poison().task
    prints = {fingerprint_of(ns, name, "r", task) for ns in (b"n" * 32, b"o" * 32) for name in ("a", "b")}
    assert len(prints) == 4


def test_who_comes_further_than_it_had_is_cleared() -> None:
    house = House()
    house.die(asking(5), after=3)
    suspicion = house.look_at(asking(5))
    assert isinstance(suspicion, Suspicion)
    suspicion.count(3)
    assert suspicion.num_deaths == 1
    suspicion.count(1)
    assert suspicion.num_deaths == 0
    assert house.look_at(asking(5)) is None
    assert house.die(asking(5)).num_deaths == 1, "a later death is its first again"


def test_a_block_ends_and_the_next_one_is_twice_as_long() -> None:
    house = House()
    house.die(poison())
    for block_s in (module.FIRST_BLOCK_S, 2 * module.FIRST_BLOCK_S, 4 * module.FIRST_BLOCK_S):
        assert house.die(poison(), before=house_deaths(house)).is_blocked
        house.clock.now_s += block_s - 1
        assert isinstance(house.look_at(poison()), Failed)
        house.clock.now_s += 2
        assert isinstance(house.look_at(poison()), Suspicion)
    house.clock.now_s += module.SUSPICION_S + 3 * module.MAX_BLOCK_S
    assert house.look_at(poison()) is None


def house_deaths(house: House) -> int:
    found = house.look_at(poison())
    assert isinstance(found, Suspicion)
    return found.num_deaths


def test_suspects_are_forgotten_in_time_and_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SUSPECTS", 10)
    house = House()
    for number in range(1, 30):
        house.die(asking(number))
    assert len(house.suspects) == 10
    house.clock.now_s += module.SUSPICION_S + 1
    assert house.look_at(asking(29)) is None
    assert len(house.suspects) == 0


# ── turns ──


async def test_turns_are_taken_one_at_a_time_in_order_and_given_up_by_who_leaves_the_queue() -> None:
    turns, had = Turns(), []

    async def take(number: int) -> None:
        await turns.take("key")
        had.append(number)

    await take(0)
    waiting = [asyncio.create_task(take(number)) for number in range(1, 5)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    turns.give("key")
    waiting[0].cancel()  # it has the turn and does not know yet
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    await waiting[2]
    assert had == [0, 3]
    await asyncio.wait_for(turns.take("other"), 1)
    turns.give("other")
    turns.give("key")
    await waiting[3]
    turns.give("key")
    assert (had, len(turns)) == ([0, 3, 4], 0)


# ── with real replicas ──


@dataclass(eq=False)
class Node:
    """One node's calls, over ranks that die of CRASH_TOKEN."""

    zygote: LocalZygote = field(default_factory=LocalZygote)
    calls: Calls = field(init=False)
    num_ranks: int = 0

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        config = EngineConfig(model_dir=Path("/nowhere"), max_sequences=16, max_step_tokens=64)
        replicas = Replicas(FakeStore(), TokenLoaders(self.zygote, config), 2, clock=loop)  # type: ignore[arg-type]
        self.calls = Calls(replicas, 1000, clock=loop)  # type: ignore[arg-type]

    @property
    def num_deaths(self) -> int:
        resident = self.calls.replicas._residents.get((MODEL, "r"))
        return 0 if resident is None else resident.num_loads - 1

    async def run(self, asked: Execute) -> list[Event]:
        heard: list[Event] = []
        ended = asyncio.Event()

        def emit(event: Event) -> None:
            heard.append(event)
            if isinstance(event, Finished | Failed):
                ended.set()

        self.calls.begin(asked, emit)
        await ended.wait()
        return heard


async def as_a_gateway(asked: Execute, nodes: list[Node]) -> list[Event]:
    """Unstreamed: tried on one node, then on another, or on the same if there is none; and once more if it was there
    when another process died and was not the cause."""
    for attempt in range(3):
        heard = await nodes[attempt % len(nodes)].run(asked)
        end = heard[-1]
        if not isinstance(end, Failed) or not end.is_retryable or (attempt == 1 and end.num_deaths != 1):
            break
        facts = {"num_deaths": end.num_deaths, "died_after": end.usage.completion_tokens}
        asked = msgspec.structs.replace(asked, **facts)
    return heard


def text_of(events: list[Event]) -> list[int]:
    return [int(text) for event in events if isinstance(event, Token) for text in event.text.split()]


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_poison_call_ends_two_processes_at_most_and_all_others_get_their_answers(num_nodes: int) -> None:
    async def play() -> None:
        nodes = [Node() for _ in range(num_nodes)]
        innocent = [
            asking(20 + number, max_tokens=30 + number, namespace=bytes([number + 1]) * 32) for number in range(12)
        ]
        background = [asking(500 + number, max_tokens=200) for number in range(4)]
        others = [asyncio.create_task(as_a_gateway(each, [nodes[-1], nodes[0]])) for each in background]
        calls = [asyncio.create_task(as_a_gateway(each, nodes)) for each in innocent]
        await asyncio.sleep(0.15)  # everybody is in the middle of an answer
        (refused,) = await as_a_gateway(poison(), nodes)
        assert isinstance(refused, Failed)
        assert (refused.is_blocked, refused.num_deaths) == (True, 2)
        for asked, call in zip(innocent + background, calls + others, strict=True):
            heard = await call
            assert isinstance(heard[-1], Finished), heard[-1]
            assert isinstance(asked.task, TextGeneration)
            prompt, wanted = asked.task.prompt_token_ids or (), asked.task.sampling.max_tokens
            assert text_of(heard) == answer(prompt, wanted, ignore_end=True)
        assert sum(node.num_deaths for node in nodes) == 2
        for _ in range(5):
            (again,) = await as_a_gateway(poison(), nodes[-1:])
            assert isinstance(again, Failed)
            assert again.is_blocked
        assert sum(node.num_deaths for node in nodes) == 2
        for node in nodes:
            (status,) = node.calls.replicas.statuses()
            assert status.state == "hot"
            assert len(node.calls.suspects.turns) == 0
            await node.calls.replicas.close()

    run_virtually(play())


def test_what_a_refused_call_caused_does_not_count_against_the_model() -> None:
    async def play() -> None:
        node = Node()
        for number in range(3 * replicas_module.MAX_CRASHES):
            bad = asking(CRASH_TOKEN, number)
            (end,) = await as_a_gateway(bad, [node])
            assert isinstance(end, Failed)
            assert end.is_blocked
        assert isinstance((await node.run(asking(7)))[-1], Finished)
        (resident,) = node.calls.replicas._residents.values()
        assert len(resident.crashes) == 0
        await node.calls.replicas.close()

    run_virtually(play())


def test_crashes_without_a_cause_still_take_the_model_out() -> None:
    async def play() -> None:
        node = Node()
        for _ in range(replicas_module.MAX_CRASHES):
            assert isinstance((await node.run(asking(7)))[-1], Finished)
            node.zygote.ranks[-1].kill()
            await asyncio.sleep(20)
        (status,) = node.calls.replicas.statuses()
        assert status.state == "failed"
        await node.calls.replicas.close()

    run_virtually(play())


def test_the_log_and_the_status_name_the_call(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> str:
        node = Node()
        details: list[str] = []
        node.calls.replicas._on_change = lambda: details.extend(s.detail for s in node.calls.replicas.statuses())
        await as_a_gateway(poison(), [node])
        await asyncio.sleep(1)
        await node.calls.replicas.close()
        return "\n".join(details)

    details = run_virtually(play())
    assert f"call {poison().request_id} was the cause" in details
    (record,) = [each for each in caplog.records if each.message == "a call is refused from now on"]
    assert record.__dict__["request_id"] == poison().request_id
    assert record.__dict__["num_deaths"] == 2


def test_a_hung_process_is_a_dead_one() -> None:
    async def play() -> None:
        node = Node()
        call = asyncio.create_task(as_a_gateway(asking(7, max_tokens=400), [node]))
        await asyncio.sleep(0.2)
        node.zygote.ranks[-1].is_hung = True
        assert isinstance((await call)[-1], Finished)
        assert node.num_deaths == 1
        await node.calls.replicas.close()

    run_virtually(play())
