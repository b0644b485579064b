"""Fixtures for fault tests: sites whose connections run through a `FaultProxy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.embedded_redis import EmbeddedRedis
from tests.gateway.process import GatewayProcess
from tests.gateway.site import Site, making_sites


@pytest.fixture(scope="module")
def new_site(migrated_sqlite_file: Path) -> Iterator[Callable[..., Site]]:
    """Return a function that creates sites. They are closed at the end of the module."""
    yield from making_sites(migrated_sqlite_file)


def socket_of(redis: EmbeddedRedis) -> Path:
    """Return the path of the Unix socket of a redis-server."""
    return Path(redis.url.removeprefix("unix://").partition("?")[0])


def errors_in(gateway: GatewayProcess) -> str:
    """Return the log lines of a gateway that report a defect. No fault may cause any."""
    return "\n".join(str(line) for line in gateway.log_lines() if line["level"] in ("error", "critical"))
