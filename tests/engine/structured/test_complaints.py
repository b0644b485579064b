"""A refusal says what is wrong with a constraint, and nothing of the caller's own text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.protocol.output_format import Constraint
from engine.structured.complaints import in_own_words
from engine.structured.token_view import read_token_view
from engine.structured.worker import judge
from tests.engine.structured.speaker import SPARK

VIEW = read_token_view(SPARK, 4096, (0, 2))
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
def test_what_is_wrong_is_told_and_not_what_was_written(constraint: Constraint | dict[str, Any], words: str) -> None:
    if isinstance(constraint, dict):
        constraint = schema(**constraint)
    told = judge(constraint, VIEW)
    assert words in told
    assert MARK.lower() not in told.lower()


def test_a_quotation_at_length_is_cut_whatever_the_sentence() -> None:
    assert in_own_words(f'something about "{MARK * 20}" is wrong') == "something about … is wrong"
