"""Fixtures: one shared gateway process with two fake nodes, and fresh sites for tests that break things.

Each fixture closes its processes at the end of its package or module, because idle processes slow down later tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.certificates import certificates
from tests.fakes.receiver import Receiver, receiving
from tests.gateway.site import Running, Site, making_sites
from tests.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def new_site(migrated_sqlite_file: Path) -> Iterator[Callable[..., Site]]:
    """Yield a function that creates sites; they are closed at the end of the module."""
    yield from making_sites(migrated_sqlite_file)


@pytest.fixture(scope="package")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """Yield the HTTP server that receives webhooks of the shared gateway."""
    authority, certificate, _ = certificates(tmp_path_factory.mktemp("receiver"))
    with receiving(certificate, authority) as receiver:
        yield receiver


@pytest.fixture(scope="package")
def running(migrated_sqlite_file: Path, receiver: Receiver) -> Iterator[Running]:
    with contextlib.contextmanager(making_sites)(migrated_sqlite_file) as new_site:
        yield _with_two_nodes(new_site(), receiver)


def _with_two_nodes(site: Site, receiver: Receiver) -> Running:
    site.add_node("n1")
    site.add_node("n2")
    gateway = site.gateway(
        HEARTH_BODY_TIMEOUT_S="1", HEARTH_CALL_TIMEOUT_S="30", HEARTH_HEAD_TIMEOUT_S="1",
        HEARTH_MAX_UNAUTHENTICATED_CONNECTIONS="40", OBJECTS_URL=f"file://{site.folder / 'objects'}",
        HEARTH_WEBHOOK_NETWORKS="127.0.0.1/32", SSL_CERT_FILE=str(receiver.authority),
        HEARTH_IMAGE_URL_MAX_BYTES="100000", HEARTH_IMAGE_URL_NETWORKS="127.0.0.1/32",
    )  # fmt: skip
    return Running(site, gateway.start())


@pytest.fixture
def relinks(running: Running) -> Iterator[Callable[[], None]]:
    """Yield a function that waits until all node connections are open, for tests in which nodes drop connections.

    It also runs before the next test, because a call sent before the nodes have reconnected may find no node.
    """

    def wait() -> None:
        wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == len(running.site.nodes))

    yield wait
    wait()


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(headers=running.headers(), timeout=60) as client:
        yield client
