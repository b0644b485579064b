"""The checker's results and messages, and its limits on time and memory for hostile constraints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from engine.protocol.output_format import Constraint
from engine.structured import checker as module
from engine.structured.check_worker import TIMEOUT_S
from engine.structured.checker import ConstraintChecker
from engine.structured.refusal import ConstraintRefused
from tests.engine.structured.schemas import INTEGER, SCHEMAS
from tests.engine.structured.spark_engine import SPARK
from tests.processes import children_of, is_running
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMESPACE = b"n" * 32


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def checker() -> AsyncIterator[ConstraintChecker]:
    checker = ConstraintChecker(SPARK, 4096, (0, 2))
    yield checker
    await checker.close()


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


async def refusal(checker: ConstraintChecker, constraint: Constraint) -> str:
    with pytest.raises(ConstraintRefused) as refused:
        await checker.check(constraint, NAMESPACE)
    return str(refused.value)


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = INTEGER
    for _ in range(levels - 1):
        value = {"items": value}
    return value


# ── passed and refused ──


async def test_usable_constraints_pass(checker: ConstraintChecker) -> None:
    for value in SCHEMAS.values():
        await checker.check(schema(value), NAMESPACE)
    await checker.check(Constraint("json_object"), NAMESPACE)
    await checker.check(Constraint("choice", '["a", ""]'), NAMESPACE)
    await checker.check(Constraint("regex", "^a+$"), NAMESPACE)
    await checker.check(Constraint("grammar", "start: <tool_call>"), NAMESPACE)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"not": INTEGER}, "uses 'not', which is not supported"),
        ({"properties": {"a": {"if": {}, "then": {}}}}, "uses 'if', 'then', which is not supported"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"type": "object", "x-guidance": {"lenient": True}, "dependentRequired": {}}, "'dependentRequired'"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]}, "'oneOf'"),
        ({"type": "string", "format": "smell"}, "format: smell"),
        ({"type": "dict"}, "type: dict"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"type": "array", "minItems": 3, "maxItems": 1}, "minItems (3) is greater than maxItems (1)"),
        ({"enum": []}, "anyOf is empty"),
        ({"$ref": "https://example.com/x"}, "https://example.com/x"),
        ({"$ref": "#"}, "no text matches it"),
        (nested(33), "deeper than 32 levels"),
        ([1], "must be an object"),
        (False, "must be an object"),
    ],
)
async def test_refusal_names_what_is_wrong_with_the_schema(
    checker: ConstraintChecker, value: object, names: str
) -> None:
    message = await refusal(checker, schema(value))
    assert message.startswith("the JSON schema ")
    assert names in message
    assert len(message) < 400
    assert "\n" not in message


async def test_constraints_at_the_size_limits_pass(checker: ConstraintChecker) -> None:
    await checker.check(schema(nested(32)), NAMESPACE)
    await checker.check(Constraint("regex", "a" * 1024), NAMESPACE)
    padded = json.dumps({"type": "integer", "description": ""})
    await checker.check(Constraint("json_schema", padded[:-2] + "x" * (65536 - len(padded)) + '"}'), NAMESPACE)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Constraint("json_schema", '"' + "x" * 65535 + '"'), "the JSON schema is larger than 65536 bytes"),
        (Constraint("json_schema", '{"é": "' + "é" * 32768 + '"}'), "the JSON schema is larger than 65536 bytes"),
        (Constraint("json_schema", "{"), "the JSON schema is not valid JSON"),
        (Constraint("json_schema", '{"a":' * 9000), "the JSON schema is not valid JSON"),
        (Constraint("regex", "a" * 1025), "the regular expression is larger than 1024 bytes"),
        (Constraint("regex", "(a"), "the regular expression cannot be used"),
        (Constraint("regex", "([a-z]{1,500}){1,500}"), "the regular expression cannot be used"),
        (Constraint("choice", "[]"), "a list of at least one string"),
        (Constraint("choice", '["a", 1]'), "a list of at least one string"),
        (Constraint("choice", "nothing"), "the list of choices is not valid JSON"),
        (
            Constraint("grammar", "start: <unknown_token>"),
            "names <unknown_token>, which is no control token of this model",
        ),
        (Constraint("grammar", "start: a\na: a"), "the grammar cannot be used"),
        (Constraint("grammar", "hello"), "the grammar cannot be used"),
        (Constraint("grammar", "start: " + " | ".join(f'"w{n}"' for n in range(2001))), "has 2002 items; max is 2000"),
        (Constraint("grammar", "x" * 300_000), "the grammar is larger than 262144 bytes"),
    ],
)
async def test_refusal_names_the_kind_of_constraint(
    checker: ConstraintChecker, constraint: Constraint, message: str
) -> None:
    assert message in await refusal(checker, constraint)


async def test_refusal_of_a_schema_within_a_grammar_does_not_show_the_grammar(checker: ConstraintChecker) -> None:
    grammar = 'start: "a" arguments\narguments: %json {"type": "string", "pattern": "(?=b)"}\n'
    message = await refusal(checker, Constraint("grammar", grammar))
    assert message.startswith("the grammar cannot be used: regex parse error")
    assert message.endswith("look-around, including look-ahead and look-behind, is not supported")


# ── hostile constraints ──

_ALTERNATIONS = {
    "$defs": {
        f"d{level}": {
            "anyOf": [
                {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{level + 1}"}, str(branch): INTEGER}}
                for branch in range(10)
            ]
        }
        for level in range(28)
    }
    | {"d28": INTEGER},
    "$ref": "#/$defs/d0",
}
_CROSSED = {
    "allOf": [
        {"anyOf": [{"properties": {f"a{i}{j}": {"type": "string"}}, "required": [f"a{i}{j}"]} for j in range(12)]}
        for i in range(10)
    ]
}
_DEEP_ITEMS: dict[str, Any] = INTEGER
for _ in range(10):
    _DEEP_ITEMS = {"type": "array", "items": _DEEP_ITEMS, "minItems": 10, "maxItems": 10}

BOMBS = {
    "alternatives in alternatives": schema(_ALTERNATIONS),
    "products of alternatives": schema(_CROSSED),
    "ten to the tenth items": schema(_DEEP_ITEMS),
    "a billion items": schema({"type": "array", "minItems": 10**9}),
    "patterns that must all hold": schema(
        {"allOf": [{"type": "string", "pattern": f".*{letter}{{9}}.*[^{letter}]{{9}}"} for letter in "abcdefghijkl"]}
    ),
    "counted in counted": Constraint("regex", r"(\w{1,500}){1,500}x"),
    "backtracking": Constraint("regex", "(x+x+)+y" * 100),
    "many states": Constraint("regex", r"[ab]*a[ab]{200}c" * 20),
    "letters of all scripts": Constraint("regex", r"\p{L}{1000}\p{N}{1000}"),
    "stars of stars": Constraint("regex", r"(.*a){200}(.*b){200}(.*c){200}"),
    "a grammar of empties": Constraint("grammar", "start: " + " ".join(["s?"] * 4000) + '\ns: s s | "a" | ""'),
    "a wide grammar": Constraint(
        "grammar", "start: " + " | ".join(f'"{i}" start start' for i in range(9000)) + ' | ""'
    ),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_hostile_constraint_takes_no_longer_than_the_timeout(checker: ConstraintChecker, name: str) -> None:
    await checker.check(schema({"const": name}), NAMESPACE)  # starts the worker
    took_s = []
    for number in range(3):  # the machine may be busy; each namespace has its own cache
        started_s = time.monotonic()
        with contextlib.suppress(ConstraintRefused):
            await checker.check(BOMBS[name], NAMESPACE + bytes([number]))
        took_s.append(time.monotonic() - started_s)
        if took_s[-1] < TIMEOUT_S + 1.5:
            break
    assert min(took_s) < TIMEOUT_S + 1.5
    await checker.check(schema({"const": name + " survived"}), NAMESPACE)


SLEEPY = """
import sys, time
import engine.structured.check_worker as worker
check = worker.refusal_of
worker.refusal_of = lambda constraint, view: time.sleep(60) if "sleep" in constraint.text else check(constraint, view)
worker.main(sys.argv[1:])
"""


async def test_timeout_is_marked_and_delays_no_other_namespace() -> None:
    """The worker's children sleep for some constraints."""
    checker = ConstraintChecker(SPARK, 4096, (0, 2), command=("-c", SLEEPY))
    try:
        await checker.check(schema({"const": "up"}), NAMESPACE)
        started_s = time.monotonic()
        sleeping = [asyncio.create_task(checker.check(schema({"const": f"sleep {i}"}), b"hostile")) for i in range(6)]
        await asyncio.sleep(0.1)
        await checker.check(schema({"const": "other"}), b"other")
        is_done = any(task.done() for task in sleeping)
        assert not is_done or time.monotonic() - started_s > 2, "the check waited for another namespace's timeout"
        with pytest.raises(ConstraintRefused, match="took longer than 2 s") as refused:
            await sleeping[0]
        assert refused.value.is_timeout
        for task in sleeping:
            task.cancel()
        await asyncio.gather(*sleeping, return_exceptions=True)
        pid = checker.worker_pid
        assert pid is not None
        await wait_until(lambda: not children_of(pid))  # a running child of a cancelled check ends by its timeout
    finally:
        await checker.close()


async def test_memory_of_a_check_is_limited() -> None:
    code = "import sys, engine.structured.check_worker as w; w.MEMORY_BYTES = 1 << 20; w.main(sys.argv[1:])"
    small = ConstraintChecker(SPARK, 4096, (0, 2), command=("-c", code))
    try:
        bomb = Constraint("grammar", "start: " + " | ".join(f'"{i}" start' for i in range(9000)) + ' | ""')
        assert "too complex to compile within 1 MiB" in await refusal(small, bomb)
    finally:
        await small.close()


# ── the worker process and the cache ──


async def test_worker_that_dies_is_restarted(checker: ConstraintChecker) -> None:
    await checker.check(schema({"const": "before"}), NAMESPACE)
    pid = checker.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await checker.check(schema({"const": "after"}), NAMESPACE)
    assert checker.worker_pid not in (None, pid)


async def test_results_are_cached_per_namespace_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED", 3)
    checker = ConstraintChecker(SPARK, 4096, (0, 2))
    try:
        for namespace, expected in [(b"a", 1), (b"a", 1), (b"b", 2), (b"c", 3), (b"d", 4), (b"a", 5)]:
            await checker.check(schema(INTEGER), namespace)
            assert checker.num_sent == expected, namespace
    finally:
        await checker.close()


async def test_equal_concurrent_checks_are_sent_once(checker: ConstraintChecker) -> None:
    before = checker.num_sent
    await asyncio.gather(*(checker.check(schema({"const": "together"}), NAMESPACE) for _ in range(5)))
    assert checker.num_sent == before + 1


async def test_close_ends_the_process(checker: ConstraintChecker) -> None:
    other = ConstraintChecker(SPARK, 4096, (0, 2))
    await other.check(schema(INTEGER), NAMESPACE)
    pid = other.worker_pid
    assert pid is not None
    await other.close()
    assert not is_running(pid)


async def test_folder_without_a_tokenizer_fails_every_check(tmp_path: Any) -> None:
    checker = ConstraintChecker(tmp_path, 4096, (0, 2))
    assert "could not be checked" in await refusal(checker, schema(INTEGER))
    await checker.close()
