"""Error messages name what is wrong with a constraint and contain nothing of the caller's text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.protocol.output_format import Constraint
from engine.structured.check_worker import refusal_of
from engine.structured.error_messages import readable_error
from engine.structured.vocabulary import read_vocabulary
from tests.engine.structured.spark_engine import SPARK

VOCABULARY = read_vocabulary(SPARK, 4096, (0, 2))
MARK = "XYZZY"


def schema(**keywords: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(keywords))


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint("regex", f'{MARK}" (in regex): error: [{MARK}'), "unclosed character class"),
        (Constraint("regex", f"a^{MARK}"), "lookarounds are not supported"),
        (Constraint("regex", f"(?<={MARK})b"), "look-around, including look-ahead and look-behind, is not supported"),
        (Constraint("grammar", f"start: A\nA: /{MARK}(/"), "unclosed group"),
        (Constraint("grammar", f'root ::= "{MARK}" ['), "Unexpected end of input at line 1"),
        (schema(type="string", pattern=f"{MARK}("), "regex parse error: unclosed group"),
        (schema(type=MARK * 10), "Invalid type"),
        (schema(type="string", format=MARK * 10), "Unknown format"),
        (schema(type="string", format="uri-template"), "Unknown format: uri-template"),
        (schema(minLength=MARK), "'minLength'"),
        ({"$ref": f"http://example.com/{MARK * 20}"}, "is not present in a registry"),
        (schema(type="object", patternProperties={f"{MARK}a*": {}, ".*": {}}), "patternProperty"),
        (schema(allOf=[{"const": MARK}, {"const": "x"}]), "Unsatisfiable schema"),
        ({"x-guidance": {MARK: 1}}, "'x-guidance'"),
    ],
)
def test_error_names_the_problem_without_the_callers_text(constraint: Constraint | dict[str, Any], words: str) -> None:
    if isinstance(constraint, dict):
        constraint = schema(**constraint)
    message = refusal_of(constraint, VOCABULARY)
    assert words in message
    assert MARK.lower() not in message.lower()


def test_long_quotations_are_removed_from_any_message() -> None:
    assert readable_error(f'something about "{MARK * 20}" is wrong') == "something about … is wrong"
