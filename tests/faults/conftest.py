"""Sites for the tests that ill-treat what is between their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.embedded_redis import EmbeddedRedis
from tests.gateway.process import GatewayProcess
from tests.gateway.site import Site, making_sites


@pytest.fixture(scope="module")
def new_site(migrated_sqlite_file: Path) -> Iterator[Callable[..., Site]]:
    """Makes sites; the module closes them."""
    yield from making_sites(migrated_sqlite_file)


def socket_of(redis: EmbeddedRedis) -> Path:
    """Where a redis-server listens."""
    return Path(redis.url.removeprefix("unix://").partition("?")[0])


def errors_in(gateway: GatewayProcess) -> str:
    """What a gateway logged that is a defect of ours, whatever was done to it."""
    return "\n".join(str(line) for line in gateway.log_lines() if line["level"] in ("error", "critical"))
