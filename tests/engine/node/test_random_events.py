"""A node on a virtual clock under random events: calls start, are cancelled, abandoned, late or crash their rank; ranks
die or hang; models evict each other. Every call ends exactly once, and at the end all resources are released.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections import Counter
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.protocol.events import Event, Failed, Finished
from engine.protocol.sampling import Sampling
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.wire import Execute
from engine.serving import replicas as replicas_module
from engine.serving.calls import Call, Calls
from engine.serving.quarantine import MAX_DEATHS
from engine.serving.replicas import Replicas
from tests.engine.node.wire_client import execute
from tests.fakes.local_rank import LocalZygote, TokenLoaders
from tests.fakes.rank import CRASH_TOKEN
from tests.fakes.task_models import FakeStore
from tests.fakes.virtual_loop import VirtualLoop, run_virtually
from tests.processes import open_files

MODELS = ("a", "b")


class World:
    """A node with room for one of two models, and the recorded events of every call."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.zygote = LocalZygote(step_s=0.01)
        config = EngineConfig(model_dir=Path("/nowhere"), max_sequences=6, max_step_tokens=48, max_waiting=20)
        self.store = FakeStore()
        loaders = TokenLoaders(self.zygote, config)
        self.replicas = Replicas(self.store, loaders, 1, clock=loop)  # type: ignore[arg-type]
        self.calls = Calls(self.replicas, 200, clock=loop)  # type: ignore[arg-type]
        self.open: dict[int, Call] = {}
        self.ends: dict[int, Event | None] = {}  # None until the end was received
        self.happened: Counter[str] = Counter()
        self._num_calls = 0

    def arrive(self) -> None:
        self._begin(self._ask(self.choose.randrange(14, 900)))

    def poison(self) -> None:
        self._begin(self._ask(CRASH_TOKEN))

    def _ask(self, first_token: int) -> Execute:
        """Return a call of one of three tenants. Its prompt shares a prefix with others of the tenant, and is sometimes
        a repetition.
        """
        choose = self.choose
        self._num_calls += 1
        length = choose.choice((1, 5, 20, 40, 90))
        prompt = (first_token if choose.random() < 0.5 else max(14, first_token % 20), *range(100, 100 + length))
        prompt = (CRASH_TOKEN, length) if first_token == CRASH_TOKEN else prompt
        sampling = Sampling(max_tokens=choose.choice((1, 3, 10, 60)), temperature=0.0, ignore_eos=choose.random() < 0.7)
        return execute(
            self._num_calls,
            TextGeneration(prompt_token_ids=prompt, sampling=sampling),
            model=choose.choice(MODELS) if choose.random() < 0.05 else MODELS[0],
            deadline_s=choose.choice((0.02, 0.5, 60.0)),
            namespace=bytes([choose.randrange(1, 4)]) * 32,
        )

    def _begin(self, execute: Execute) -> None:
        number = execute.call_id
        self.ends[number] = None

        def emit(event: Event) -> None:
            assert self.ends[number] is None, "event after the end"
            if isinstance(event, Finished | Failed):
                self.ends[number] = event
                self.open.pop(number, None)

        call = self.calls.begin(execute, emit)
        if call is not None and self.ends[number] is None:
            self.open[number] = call

    def _pick(self) -> int | None:
        return self.choose.choice(list(self.open)) if self.open else None

    def cancel(self) -> None:
        number = self._pick()
        if number is not None:
            self.open[number].cancel()

    def abandon(self) -> None:
        number = self._pick()
        if number is not None:
            call = self.open.pop(number)
            call.abandon()
            self.ends[number] = Failed("aborted")

    def kill(self) -> None:
        for rank in self.zygote.ranks[-1:]:
            rank.kill()

    def hang(self) -> None:
        for rank in self.zygote.ranks[-1:]:
            rank.is_hung = True

    def storm(self) -> None:
        """Run a client that aborts all of its calls at once."""
        for _ in range(10):
            self.arrive()
            number = max(self.ends)
            if number in self.open:
                self.open[number].cancel()

    def check(self) -> None:
        """Check the invariants."""
        assert len(self.calls) == len(self.open)
        for rank in self.zygote.ranks:
            if not rank.is_dead:
                table, scheduler = rank.engine.table, rank.engine.scheduler
                holders = [table.block_table[slot, : table.num_blocks[slot]] for slot in scheduler.running]
                rank.engine.blocks.check_integrity(holders)

    async def leave(self) -> None:
        """Let the running calls finish, unload everything, and check that nothing is left."""
        await self.calls.drain(300.0)
        assert not self.open
        assert all(end is not None for end in self.ends.values())
        await asyncio.sleep(10)
        assert all(replica.num_calls == 0 for replica in self.replicas)
        for rank in self.zygote.ranks:
            if not rank.is_dead and not rank.is_hung:
                engine = rank.engine
                assert engine.blocks.num_in_use == 0
                assert not engine.has_work
                assert not engine.scheduler.sequence_blocks._computing
                assert engine.scheduler.sequence_blocks.num_reserved == 0
                assert len(engine.scheduler._free_slots) == 6
                assert not engine.scheduler.counters._num_open.any()
        await self.replicas.close()
        assert all(rank.is_dead for rank in self.zygote.ranks)
        assert self.store.held == []


async def play(seed: int, num_events: int) -> World:
    world = World(random.Random(seed))
    events = {
        world.arrive: 100, world.cancel: 15, world.abandon: 10, world.poison: 0.6, world.kill: 0.15, world.hang: 0.1,
        world.storm: 1,
    }  # fmt: skip
    before = set(asyncio.all_tasks())
    for number in range(num_events):
        (event,) = world.choose.choices(list(events), list(events.values()))
        world.happened[event.__name__] += 1
        event()
        if world.choose.random() < 0.7:
            await asyncio.sleep(world.choose.expovariate(1 / 0.02))
        if number % 200 == 0:
            world.check()
    await world.leave()
    await asyncio.sleep(3600)  # longer than any delayed event
    assert asyncio.all_tasks() == before
    return world


def check_a_run(seed: int, num_events: int) -> World:
    logging.disable(logging.ERROR)  # thousands of crashes would be logged one by one
    before = open_files()
    try:
        world = run_virtually(play(seed, num_events))
    finally:
        logging.disable(logging.NOTSET)
    gc.collect()
    assert open_files() <= before
    blocked = [end for end in world.ends.values() if isinstance(end, Failed) and end.is_blocked]
    assert all(end.num_crashes >= MAX_DEATHS for end in blocked)
    return world


@pytest.mark.parametrize("seed", range(2))
def test_all_resources_are_released_after_a_thousand_events(seed: int) -> None:
    world = check_a_run(seed, 1000)
    outcomes = Counter(end.reason for end in world.ends.values() if isinstance(end, Finished | Failed))
    assert outcomes["stop"] + outcomes["length"] > 100
    assert outcomes.keys() >= {"aborted", "timeout"}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_all_resources_are_released_after_a_hundred_thousand_events(monkeypatch: pytest.MonkeyPatch) -> None:
    # seconds of virtual time, so that the model is loaded again
    monkeypatch.setattr(replicas_module, "CRASH_WINDOW_S", 5.0)
    world = check_a_run(seed=7, num_events=100_000)
    assert min(world.happened.values()) > 50
    assert any(isinstance(end, Failed) and end.is_blocked for end in world.ends.values())
