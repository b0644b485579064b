"""The database and object store of a platform, with their errors as one line for the user."""

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
    """Open the database and the object store. Raises CommandFailed."""
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
    """Convert errors of the catalog, the object store and the local disk to CommandFailed."""
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
