"""What the tests of the built-in model share: the committed files, or a skip that says they are missing."""

import pytest
from tokenizers import Tokenizer

from spark.export import COMMITTED


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    path = COMMITTED / "tokenizer.json"
    if not path.exists():
        pytest.skip("no tokenizer is committed")
    return Tokenizer.from_file(str(path))
