"""One platform with two nodes for the tests that only read it; fresh ones for those that break things."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.platform import Platform


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    running = Platform(tmp_path_factory.mktemp("hearth")).start()
    yield running
    running.stop()
