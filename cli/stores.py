"""A platform's database and object store together, for commands about what lies in both; their failures as one line."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cli.output import CommandFailed
from cli.target import Target

if TYPE_CHECKING:
    from storage.database import Database
    from storage.objects import Objects


@contextlib.asynccontextmanager
async def stores(data: Path | None) -> AsyncIterator[tuple[Database, Objects]]:
    """Both, closed at the end. Raises CommandFailed."""
    from storage.objects import Objects

    target = Target.find(data)
    async with target.database() as database:
        with failures():
            try:
                objects = Objects.connect(target.require("OBJECTS_URL"))
            except ValueError as error:
                raise CommandFailed(f"OBJECTS_URL: {error}") from None
            try:
                yield database, objects
            finally:
                await objects.close()


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """What the catalog, the object store and the local disk refuse, as one line."""
    from catalog.errors import CatalogError, InvalidModelId
    from storage.errors import StoreError

    try:
        yield
    except InvalidModelId as error:
        raise CommandFailed(str(error), exit_code=2) from None
    except (CatalogError, StoreError) as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{error.filename or 'disk'}: {error.strerror or error}") from None
