"""Schemas that others published: two hundred drawn requests, every answer met."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.constrained import Loop, constraint_of, count_matching
from bench.published_schemas import function_schemas, suite_schemas
from engine.config import EngineConfig
from engine.runner import Runner
from engine.structured.token_view import read_token_view
from engine.structured.worker import judge
from tests.engine import one_thread  # noqa: F401
from tests.engine.structured.speaker import SPARK


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_hundred_drawn_requests_are_all_met(test_data: Path) -> None:
    view = read_token_view(SPARK, 4096, (0, 2))
    schemas = [*suite_schemas(test_data), *function_schemas(test_data)]
    taken = [schema for schema in schemas if not judge(constraint_of(schema), view)]
    loop = Loop(Runner(EngineConfig(model_dir=SPARK)), num_streams=16, num_threads=1)
    result = count_matching(loop, taken, 200)
    assert (result["asked"], result["met"]) == (200, 200), result["failures"]


@pytest.mark.full
def test_every_published_function_s_parameters_are_taken(test_data: Path) -> None:
    view = read_token_view(SPARK, 4096, (0, 2))
    refusals = [judge(constraint_of(schema), view) for schema in function_schemas(test_data)]
    assert len(refusals) > 1000
    assert [refusal for refusal in refusals if refusal] == []
