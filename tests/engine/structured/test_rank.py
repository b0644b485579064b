"""Constrained sequences in a real rank process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine.config import EngineConfig
from engine.processes.zygote import Zygote
from engine.protocol.output_format import Constraint
from engine.ranks.output import SequenceOutput
from engine.ranks.replica import Replica
from tests.engine.caller import Caller
from tests.engine.structured.schemas import INTEGER, STRING, record
from tests.engine.structured.spark_engine import SPARK
from tests.processes import num_threads
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
PERSON = Constraint("json_schema", json.dumps(record(name=STRING, age=INTEGER)))


class PersonReplica:
    """A replica of the built-in model that describes a person."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._caller = Caller(replica)

    async def complete(self, constraint: Constraint | None, **sampling: object) -> tuple[str, list[SequenceOutput]]:
        """Return the text of one completion, and all outputs of the rank."""
        return await self._caller.ask("Describe a person.", constraint=constraint, **sampling)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def spark(zygote: Zygote) -> AsyncIterator[PersonReplica]:
    replica = await Replica.start(zygote, EngineConfig(model_dir=SPARK), "r1", lambda _: None)
    yield PersonReplica(replica)
    await replica.close()


async def test_idle_rank_reads_the_vocabulary_in_advance(zygote: Zygote) -> None:
    for _ in range(3):  # a rank may read the vocabulary before the test counts its threads
        if await starts_thread_when_idle(zygote):
            return
    pytest.fail("no rank started a thread")


async def starts_thread_when_idle(zygote: Zygote) -> bool:
    """Return True if a new rank starts a thread without a request."""
    replica = await Replica.start(zygote, EngineConfig(model_dir=SPARK), "r1", lambda _: None)
    before = num_threads(replica.pid)
    try:
        await wait_until(lambda: num_threads(replica.pid) > before, 20)
    except AssertionError:
        return False
    finally:
        await replica.close()
    return True


async def test_value_ends_with_an_output_without_tokens(spark: PersonReplica) -> None:
    text, outputs = await spark.complete(PERSON, temperature=0.0)
    assert set(json.loads(text)) == {"name", "age"}
    assert (outputs[-1].finish, outputs[-1].token_ids) == ("stop", ())
    assert all(output.token_ids for output in outputs[:-1])


async def test_value_cut_by_the_limit_ends_as_unclosed(spark: PersonReplica) -> None:
    text, outputs = await spark.complete(PERSON, max_tokens=3)
    assert text.startswith("{")
    assert (outputs[-1].finish, sum(len(output.token_ids) for output in outputs)) == ("unclosed", 3)


async def test_constraint_that_does_not_compile_ends_with_an_error_and_the_rank_survives(spark: PersonReplica) -> None:
    invalid = [Constraint("regex", "("), Constraint("json_schema", "{"), Constraint("choice", "[1]")]
    invalid += [Constraint("grammar", "start: x"), Constraint("json_schema", '{"$ref": "#"}')]
    results = await asyncio.gather(
        *(spark.complete(constraint) for constraint in invalid),
        spark.complete(PERSON, temperature=0.0),
        spark.complete(None, max_tokens=4),
    )
    assert [outputs[-1].finish for _, outputs in results[:4]] == ["error"] * 4
    assert results[4][1][-1].finish in ("error", "too_complex", "unclosed")
    assert set(json.loads(results[5][0])) == {"name", "age"}
    assert results[6][1][-1].finish in ("stop", "length")
    assert spark.replica.is_alive


async def test_hundred_constrained_sequences_at_once(spark: PersonReplica) -> None:
    constraints = [Constraint("json_schema", json.dumps(record(**{f"key {i}": DIGIT}))) for i in range(100)]
    results = await asyncio.gather(
        *(spark.complete(constraint, max_tokens=20, temperature=1.0) for constraint in constraints)
    )
    for index, (text, outputs) in enumerate(results):
        assert outputs[-1].finish == "stop"
        assert list(json.loads(text)) == [f"key {index}"]
