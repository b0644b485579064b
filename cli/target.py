"""Target: the platform a command talks to.

Found through the environment (DATABASE_URL and its companions), as in a container, or through the folder of a
`hearth up`. An explicit `--data` wins over the environment. Opens stores; knows no nouns.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.data_dir import DEFAULT_DATA, DataDir
from cli.output import CommandFailed

if TYPE_CHECKING:
    from storage.database import Database


@dataclass(frozen=True)
class Target:
    """`environ` is what a process of that platform would read; `origin` says in words where it came from."""

    environ: Mapping[str, str]
    origin: str
    first_account_id: str = ""

    @classmethod
    def find(cls, data: Path | None) -> Target:
        """Raises CommandFailed when there is no platform to talk to."""
        if data is None and os.environ.get("DATABASE_URL"):
            return cls(dict(os.environ), "the environment")
        data_dir = DataDir(data or DEFAULT_DATA)
        if not data_dir.is_platform:
            raise CommandFailed(f"no platform in {data_dir.path}: start one with `hearth up`, or set DATABASE_URL")
        try:
            secrets = data_dir.read_secrets()
        except (OSError, ValueError) as error:
            raise CommandFailed(str(error)) from None
        running = data_dir.read_dev() or {}
        reached = {
            env: str(running[field])
            for env, field in (
                ("DATABASE_URL", "database_url"),
                ("REDIS_URL", "redis_url"),
                ("OBJECTS_URL", "objects_url"),
            )
            if field in running
        }
        environ = {**os.environ, **data_dir.store_urls(), **secrets.keys, **reached}
        return cls(environ, str(data_dir.path), secrets.account_id)

    def require(self, env: str) -> str:
        """The value of a variable. Raises CommandFailed naming it when it is not there."""
        value = self.environ.get(env, "")
        if not value:
            raise CommandFailed(f"{env} is not set, in {self.origin}")
        return value

    def pepper(self) -> bytes:
        """The key of the tokens' hashes. Raises CommandFailed."""
        try:
            return bytes.fromhex(self.require("HEARTH_TOKEN_PEPPER"))
        except ValueError:
            raise CommandFailed("HEARTH_TOKEN_PEPPER: expected hexadecimal bytes") from None

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[Database]:
        """The platform's database, closed at the end. Raises CommandFailed when it is away or not migrated."""
        from storage.database import Database
        from storage.errors import StoreUnavailable
        from storage.migrate import current_revision

        url = self.require("DATABASE_URL")
        try:
            if await current_revision(url) is None:
                raise CommandFailed("the database has no tables yet: run `hearth migrate`")
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
