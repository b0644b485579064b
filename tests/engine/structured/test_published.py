"""Schemas published by others: they compile, and outputs match them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.constrained import Loop, constraint_of, count_matching
from bench.published_schemas import function_schemas, suite_schemas
from engine.config import EngineConfig
from engine.runner import Runner
from engine.structured.check_worker import refusal_of
from engine.structured.vocabulary import read_vocabulary
from tests.engine import one_thread  # noqa: F401
from tests.engine.structured.spark_engine import SPARK


@pytest.mark.full
@pytest.mark.timeout(600)
def test_completed_outputs_match_published_schemas(test_data: Path) -> None:
    vocabulary = read_vocabulary(SPARK, 4096, (0, 2))
    schemas = [*suite_schemas(test_data), *function_schemas(test_data)]
    usable = [schema for schema in schemas if not refusal_of(constraint_of(schema), vocabulary)]
    loop = Loop(Runner(EngineConfig(model_dir=SPARK)), num_streams=16, num_threads=1)
    result = count_matching(loop, usable, 200)
    assert result["requested"] == 200
    assert result["met"] + result["unclosed"] == 200, result["failures"]
    assert result["unclosed"] < 60


@pytest.mark.full
def test_parameters_of_all_published_functions_compile(test_data: Path) -> None:
    vocabulary = read_vocabulary(SPARK, 4096, (0, 2))
    refusals = [refusal_of(constraint_of(schema), vocabulary) for schema in function_schemas(test_data)]
    assert len(refusals) > 1000
    assert [refusal for refusal in refusals if refusal] == []
