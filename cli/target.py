"""Target: the platform a command talks to.

Found through the environment (DATABASE_URL and its companions), as in a container, or through the folder of a
`hearth up`. An explicit `--data` wins over the environment. Opens stores; knows no nouns.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cli.data_dir import DEFAULT_DATA, URL_FIELDS, DataDir
from cli.output import CommandFailed

if TYPE_CHECKING:
    from storage.database import Database
    from storage.ephemeral import Ephemeral


@dataclass(frozen=True)
class Target:
    """`environ` is what every process of that platform reads; `data_dir` the folder it was found in, if it was.
    `own_environs` is what a running `hearth up` gave to single processes beside that: `gateway`, or a node's id."""

    environ: Mapping[str, str]
    data_dir: Path | None
    first_account_id: str = ""
    own_environs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def find(cls, data: Path | None) -> Target:
        """Raises CommandFailed when there is no platform to talk to."""
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
        # What this shell says of some deployment's stores is not about this platform.
        inherited = {env: value for env, value in os.environ.items() if env not in URL_FIELDS.values()}
        environ = {**inherited, **data_dir.environ(), **secrets.keys, **urls}
        return cls(environ, data_dir.path, secrets.account_id, running.get("settings", {}))

    @property
    def origin(self) -> str:
        """In words, where this platform was found."""
        return "the environment" if self.data_dir is None else str(self.data_dir)

    def processes(self, kind: str) -> dict[str, dict[str, str]]:
        """The whole environment of each process of a kind (`gateway` or `node`), by name. Where none is known to run,
        that of one with nothing of its own."""
        names = [name for name in self.own_environs if (name == "gateway") == (kind == "gateway")] or [kind]
        return {name: {**self.environ, **self.own_environs.get(name, {})} for name in names}

    @property
    def is_stopped(self) -> bool:
        """Whether this is a folder whose platform is not up now."""
        return self.data_dir is not None and not self.own_environs

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

    @contextlib.asynccontextmanager
    async def hints(self) -> AsyncIterator[Ephemeral | None]:
        """The platform's Redis, to tell gateways of a change at once; None where there is none. It may be away: then
        they see the change at their next look at the database, a second later."""
        from storage.ephemeral import Ephemeral

        url = self.environ.get("REDIS_URL", "")
        if not url:
            yield None
            return
        store = Ephemeral.connect(url)
        try:
            yield store
        finally:
            await store.close()
