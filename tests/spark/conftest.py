"""Fixtures for tests of the built-in model: the committed files, or a skip that names the missing files."""

import pytest
from tokenizers import Tokenizer

from spark.export import COMMITTED


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    path = COMMITTED / "tokenizer.json"
    if not path.exists():
        pytest.skip("no tokenizer is committed")
    return Tokenizer.from_file(str(path))
