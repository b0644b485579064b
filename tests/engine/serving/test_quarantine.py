"""The quarantine: an input is rejected after it has crashed its model's process twice; other calls finish (P20)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from bench import figures
from engine.config import EngineConfig
from engine.protocol.events import Event, Failed, Finished, Token, Usage
from engine.protocol.fingerprint import fingerprint_of
from engine.protocol.sampling import Sampling
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.wire import Execute
from engine.serving import quarantine as module
from engine.serving import replicas as replicas_module
from engine.serving.calls import Calls
from engine.serving.quarantine import MAX_DEATHS, Quarantine
from engine.serving.replicas import Replicas
from tests.engine.node.wire_client import execute
from tests.fakes.local_rank import LocalZygote, TokenLoaders
from tests.fakes.rank import CRASH_TOKEN
from tests.fakes.runner import expected_tokens
from tests.fakes.task_models import FakeStore, HandClock
from tests.fakes.virtual_loop import run_virtually

MODEL = "a"


def call(*prompt: int, max_tokens: int = 20, namespace: bytes = b"n" * 32, call_id: int = 1) -> Execute:
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    task = TextGeneration(prompt_token_ids=prompt, sampling=sampling)
    return execute(call_id, task, model=MODEL, revision="r", namespace=namespace, deadline_s=600.0)


def poison(namespace: bytes = b"n" * 32) -> Execute:
    return call(CRASH_TOKEN, 1, 2, namespace=namespace)


# ── counting crashes ──


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def quarantine(clock: HandClock) -> Quarantine:
    return Quarantine(clock)  # type: ignore[arg-type]


def test_other_inputs_are_not_affected(quarantine: Quarantine) -> None:
    assert quarantine.find(call(5)) is None
    quarantine.record(poison(), Usage(), 1)
    assert quarantine.find(call(5)) is None


def test_input_is_rejected_after_its_second_crash(quarantine: Quarantine) -> None:
    first = quarantine.record(poison(), Usage(), 1)
    assert (first.is_retryable, first.is_blocked, first.num_crashes) == (True, False, 1)
    assert quarantine.refusal(poison()) is None
    second = quarantine.record(poison(), Usage(), 2)
    assert (second.is_retryable, second.is_blocked, second.num_crashes) == (False, True, 2)
    refusal = quarantine.refusal(poison())
    assert refusal is not None
    assert refusal.is_blocked


def test_crash_on_another_node_counts(quarantine: Quarantine) -> None:
    retried = msgspec.structs.replace(poison(), num_crashes=1, tokens_before_crash=7)
    found = quarantine.find(retried)
    assert found is not None
    assert (found.count, found.num_tokens) == (1, 7)
    assert quarantine.record(retried, Usage(), 1).is_blocked


def test_equal_inputs_that_crash_together_count_once(quarantine: Quarantine) -> None:
    assert quarantine.record(poison(), Usage(), 1).num_crashes == 1
    assert quarantine.record(poison(), Usage(), 1).num_crashes == 1
    assert quarantine.record(poison(), Usage(), 2).num_crashes == 2


def test_the_same_input_of_another_tenant_is_another_input(quarantine: Quarantine) -> None:
    quarantine.record(poison(), Usage(), 1)
    quarantine.record(poison(), Usage(), 2)
    assert quarantine.find(poison(namespace=b"o" * 32)) is None
    task = poison().task
    prints = {fingerprint_of(ns, name, "r", task) for ns in (b"n" * 32, b"o" * 32) for name in ("a", "b")}
    assert len(prints) == 4


def test_a_refusal_expires(quarantine: Quarantine, clock: HandClock) -> None:
    quarantine.record(poison(), Usage(), 1)
    quarantine.record(poison(), Usage(), 2)
    clock.now_s += module.BLOCK_S - 1
    assert quarantine.refusal(poison()) is not None
    clock.now_s += 2
    assert quarantine.refusal(poison()) is None
    assert quarantine.find(poison()) is None


def test_the_number_of_inputs_is_bounded(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INPUTS", 10)
    quarantine = Quarantine(clock)
    for number in range(1, 30):
        quarantine.record(call(number), Usage(), number)
    assert len(quarantine) == 10
    clock.now_s += module.BLOCK_S + 1
    assert quarantine.find(call(29)) is None
    assert len(quarantine) == 0


# ── with real replicas ──


@dataclass(eq=False)
class Node:
    """The calls of one node whose ranks crash on CRASH_TOKEN."""

    zygote: LocalZygote = field(default_factory=LocalZygote)
    calls: Calls = field(init=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        config = EngineConfig(model_dir=Path("/nowhere"), max_sequences=16, max_step_tokens=64)
        replicas = Replicas(FakeStore(), TokenLoaders(self.zygote, config), 2, clock=loop)  # type: ignore[arg-type]
        self.calls = Calls(replicas, 1000, clock=loop)  # type: ignore[arg-type]

    @property
    def num_crashes(self) -> int:
        return sum(replica.num_loads - 1 for replica in self.calls.replicas)

    async def run(self, execute: Execute) -> list[Event]:
        events: list[Event] = []
        ended = asyncio.Event()

        def emit(event: Event) -> None:
            events.append(event)
            if isinstance(event, Finished | Failed):
                ended.set()

        self.calls.begin(execute, emit)
        await ended.wait()
        return events


async def run_as_gateway(execute: Execute, nodes: list[Node]) -> list[Event]:
    """Run an unstreamed call like the gateway does: retry once on another node (the same one if there is only one), and
    a second time if the crash of the first retry had another cause.
    """
    for attempt in range(3):
        events = await nodes[attempt % len(nodes)].run(execute)
        end = events[-1]
        if not isinstance(end, Failed) or not end.is_retryable or (attempt == 1 and end.num_crashes != 1):
            break
        execute = msgspec.structs.replace(
            execute, num_crashes=end.num_crashes, tokens_before_crash=end.usage.completion_tokens
        )
    return events


def token_ids_of(events: list[Event]) -> list[int]:
    return [int(text) for event in events if isinstance(event, Token) for text in event.text.split()]


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_poison_call_ends_at_most_two_processes_and_all_other_calls_finish(num_nodes: int) -> None:
    async def play() -> None:
        nodes = [Node() for _ in range(num_nodes)]
        innocent = [
            call(20 + number, max_tokens=30 + number, namespace=bytes([number + 1]) * 32) for number in range(12)
        ]
        background = [call(500 + number, max_tokens=200) for number in range(4)]
        others = [asyncio.create_task(run_as_gateway(each, [nodes[-1], nodes[0]])) for each in background]
        calls = [asyncio.create_task(run_as_gateway(each, nodes)) for each in innocent]
        await asyncio.sleep(0.15)  # long enough for all calls to generate
        (refused,) = await run_as_gateway(poison(), nodes)
        assert isinstance(refused, Failed)
        assert (refused.is_blocked, refused.num_crashes) == (True, MAX_DEATHS)
        for request, running in zip(innocent + background, calls + others, strict=True):
            events = await running
            assert isinstance(events[-1], Finished), events[-1]
            assert isinstance(request.task, TextGeneration)
            prompt, max_tokens = request.task.prompt_token_ids or (), request.task.sampling.max_tokens
            assert token_ids_of(events) == expected_tokens(prompt, max_tokens, ignore_end=True)
        for _ in range(5):
            (again,) = await run_as_gateway(poison(), nodes[-1:])
            assert isinstance(again, Failed)
            assert again.is_blocked
        num_crashes = sum(node.num_crashes for node in nodes)
        assert num_crashes == 2
        figure = f"{num_nodes} nodes: {num_crashes} processes crashed, then rejected; 16 of 16 other calls finished"
        figures.record("P20", figure, f"pytest {Path(__file__).name}")
        for node in nodes:
            (status,) = node.calls.replicas.statuses()
            assert status.state == "ready"
            await node.calls.replicas.close()

    run_virtually(play())


def test_deaths_caused_by_refused_inputs_do_not_take_the_model_out_of_service() -> None:
    async def play() -> None:
        node = Node()
        for number in range(3 * replicas_module.MAX_CRASHES):
            (end,) = await run_as_gateway(call(CRASH_TOKEN, number), [node])
            assert isinstance(end, Failed)
            assert end.is_blocked
        assert isinstance((await node.run(call(7)))[-1], Finished)
        await node.calls.replicas.close()

    run_virtually(play())


def test_crashes_without_a_known_cause_take_the_model_out_of_service() -> None:
    async def play() -> None:
        node = Node()
        for _ in range(replicas_module.MAX_CRASHES):
            assert isinstance((await node.run(call(7)))[-1], Finished)
            node.zygote.ranks[-1].kill()
            await asyncio.sleep(20)
        (status,) = node.calls.replicas.statuses()
        assert status.state == "failed"
        await node.calls.replicas.close()

    run_virtually(play())


def test_the_log_and_the_status_name_the_call(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> str:
        node = Node()
        await run_as_gateway(poison(), [node])
        (status,) = node.calls.replicas.statuses()
        await node.calls.replicas.close()
        return status.detail

    assert f"call {poison().request_id} was the cause" in run_virtually(play())
    (record,) = [each for each in caplog.records if each.message == "input quarantined"]
    assert record.__dict__["request_id"] == poison().request_id


def test_a_hung_process_counts_as_dead() -> None:
    async def play() -> None:
        node = Node()
        running = asyncio.create_task(run_as_gateway(call(7, max_tokens=400), [node]))
        await asyncio.sleep(0.2)
        node.zygote.ranks[-1].is_hung = True
        assert isinstance((await running)[-1], Finished)
        assert node.num_crashes == 1
        await node.calls.replicas.close()

    run_virtually(play())
