"""The platform that a command acts on.

Found through the environment (`DATABASE_URL` and related variables), as in a container, or through the data directory
of `hearth up`. An explicit `--data` takes precedence over the environment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output import CommandFailed
from local_platform.data_dir import DEFAULT_DATA, URL_FIELDS, DataDir

if TYPE_CHECKING:
    from storage.database import Database
    from tenants.change_context import ChangeContext

DataOption = Annotated[
    Path | None, typer.Option("--data", help="Data directory of a platform started by `hearth up`. Default: .hearth.")
]


@dataclass(frozen=True)
class Target:
    """One platform: the environment shared by all its processes, and its data directory if it has one.

    `process_environs` holds what a running `hearth up` sets for single processes: `gateway`, or a node id.
    """

    environ: Mapping[str, str]
    data_dir: Path | None
    first_account_id: str = ""
    process_environs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def find(cls, data: Path | None) -> Target:
        """Return the platform of the environment or of a data directory. Raises CommandFailed if neither exists."""
        if data is None and os.environ.get("DATABASE_URL"):
            return cls(dict(os.environ), None)
        data_dir = DataDir(data or DEFAULT_DATA)
        if not data_dir.is_platform:
            raise CommandFailed(f"no platform in {data_dir.path}: start one with `hearth up`, or set DATABASE_URL")
        try:
            secrets = data_dir.read_secrets()
        except (OSError, ValueError) as error:
            raise CommandFailed(str(error)) from None
        running = data_dir.read_dev() or {}
        urls = {env: str(running[name]) for name, env in URL_FIELDS.items() if name in running}
        # Store URLs in this shell's environment belong to another deployment.
        inherited = {env: value for env, value in os.environ.items() if env not in URL_FIELDS.values()}
        environ = {**inherited, **data_dir.environ(), **secrets.keys, **urls}
        return cls(environ, data_dir.path, secrets.account_id, running.get("settings", {}))

    @property
    def origin(self) -> str:
        """The place where this platform was found, for messages."""
        return "the environment" if self.data_dir is None else str(self.data_dir)

    def processes(self, kind: str) -> dict[str, dict[str, str]]:
        """Return process name -> complete environment for all processes of a kind (`gateway` or `node`).

        If no such process is known to run, returns one process with the shared environment.
        """
        names = [name for name in self.process_environs if (name == "gateway") == (kind == "gateway")] or [kind]
        return {name: {**self.environ, **self.process_environs.get(name, {})} for name in names}

    @property
    def is_stopped(self) -> bool:
        """True for a data directory whose platform does not run now."""
        return self.data_dir is not None and not self.process_environs

    def require(self, env: str) -> str:
        """Return the value of an environment variable. Raises CommandFailed if it is not set."""
        value = self.environ.get(env, "")
        if not value:
            raise CommandFailed(f"{env} is not set in {self.origin}")
        return value

    def pepper(self) -> bytes:
        """Return the key of the API tokens' hashes. Raises CommandFailed."""
        try:
            return bytes.fromhex(self.require("HEARTH_TOKEN_PEPPER"))
        except ValueError:
            raise CommandFailed("HEARTH_TOKEN_PEPPER must be hexadecimal") from None

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[Database]:
        """Open the platform's database. Raises CommandFailed if it is unavailable or not migrated."""
        from storage.database import Database
        from storage.errors import StoreUnavailable
        from storage.migrate import current_revision

        url = self.require("DATABASE_URL")
        try:
            if await current_revision(url) is None:
                raise CommandFailed("the database has no tables: run `hearth migrate`")
            database = Database.connect(url)
        except ValueError as error:
            raise CommandFailed(f"DATABASE_URL: {error}") from None
        except StoreUnavailable as error:
            raise CommandFailed(str(error)) from None
        try:
            yield database
        except StoreUnavailable as error:
            raise CommandFailed(str(error)) from None
        finally:
            await database.close()

    @contextlib.asynccontextmanager
    async def change_context(self) -> AsyncIterator[ChangeContext]:
        """Open the platform's Redis, if it has one, to notify gateways of changes at once.

        Redis may be unavailable: gateways then read the change from the database within a second.
        """
        from storage.ephemeral import Ephemeral
        from tenants.change_context import CLI, ChangeContext

        url = self.environ.get("REDIS_URL", "")
        if not url:
            yield CLI
            return
        store = Ephemeral.connect(url)
        try:
            yield ChangeContext(ephemeral=store)
        finally:
            await store.close()
