"""A constrained sequence through a real rank process, from the front's check to its last output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine.config import EngineConfig
from engine.processes.zygote import Zygote
from engine.protocol.tasks import Constraint
from engine.ranks.output import SequenceOutput
from engine.ranks.replica import Replica
from tests.engine.heard import Caller
from tests.engine.structured.schemas import INTEGER, STRING, record
from tests.engine.structured.speaker import SPARK
from tests.processes import num_threads
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PERSON = Constraint("json_schema", json.dumps(record(name=STRING, age=INTEGER)))


class Door:
    """A replica of the built-in model, asked to describe a person."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._caller = Caller(replica)

    async def ask(self, constraint: Constraint | None, **sampling: object) -> tuple[str, list[SequenceOutput]]:
        """The text and every output."""
        return await self._caller.ask("Describe a person.", constraint=constraint, **sampling)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(zygote: Zygote) -> AsyncIterator[Door]:
    replica = await Replica.start(zygote, EngineConfig(model_dir=SPARK), "r1", lambda _: None)
    yield Door(replica)
    await replica.close()


async def test_a_rank_at_rest_reads_the_tokenizer_for_constraints_to_come(zygote: Zygote) -> None:
    for _ in range(3):  # one may have read it before this test looks
        if await is_seen_to_read(zygote):
            return
    pytest.fail("none did")


async def is_seen_to_read(zygote: Zygote) -> bool:
    """Whether a new rank, of which nothing is asked, begins a thread."""
    replica = await Replica.start(zygote, EngineConfig(model_dir=SPARK), "r1", lambda _: None)
    before = num_threads(replica.pid)
    try:
        await wait_until(lambda: num_threads(replica.pid) > before, 20)
    except AssertionError:
        return False
    finally:
        await replica.close()
    return True


async def test_the_end_of_a_value_comes_after_its_last_token_and_brings_none(door: Door) -> None:
    text, outputs = await door.ask(PERSON, temperature=0.0)
    assert set(json.loads(text)) == {"name", "age"}
    assert (outputs[-1].finish, outputs[-1].token_ids) == ("stop", ())
    assert all(output.token_ids for output in outputs[:-1])


async def test_a_value_cut_short_by_the_limit_says_so(door: Door) -> None:
    text, outputs = await door.ask(PERSON, max_tokens=3)
    assert text.startswith("{")
    assert (outputs[-1].finish, sum(len(output.token_ids) for output in outputs)) == ("unclosed", 3)


async def test_what_no_checker_passed_ends_with_an_error_and_the_rank_goes_on(door: Door) -> None:
    bad = [Constraint("regex", "("), Constraint("json_schema", "{"), Constraint("choice", "[1]")]
    bad += [Constraint("grammar", "start: x"), Constraint("json_schema", '{"$ref": "#"}')]
    results = await asyncio.gather(*(door.ask(one) for one in bad), door.ask(PERSON), door.ask(None, max_tokens=4))
    assert [outputs[-1].finish for _, outputs in results[:4]] == ["error"] * 4
    assert results[4][1][-1].finish in ("error", "too_complex", "unclosed")
    assert set(json.loads(results[5][0])) == {"name", "age"}
    assert results[6][1][-1].finish in ("stop", "length")
    assert door.replica.is_alive


async def test_a_hundred_constrained_at_once(door: Door) -> None:
    constraints = [Constraint("json_schema", json.dumps(record(**{f"key {i}": INTEGER}))) for i in range(100)]
    results = await asyncio.gather(*(door.ask(one, max_tokens=20, temperature=1.0) for one in constraints))
    for index, (text, outputs) in enumerate(results):
        assert outputs[-1].finish == "stop"
        assert list(json.loads(text)) == [f"key {index}"]
