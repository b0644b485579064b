"""`hearth migrate`: migrate the database to this version's schema. `hearth up` does this itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cli.output import CommandFailed, JsonOption, print_record
from cli.target import DataOption, Target


def migrate(data: DataOption = None, json: JsonOption = False) -> None:
    """Migrate the database to this version's schema. Does nothing if the schema is current."""
    print_record(asyncio.run(_migrate(data)), is_json=json)


async def _migrate(data: Path | None) -> dict[str, str | None]:
    from cli.audit_entries import append_entry
    from storage.errors import StoreUnavailable
    from storage.migrate import current_revision
    from storage.migrate import migrate as upgrade

    url = Target.find(data).require("DATABASE_URL")
    try:
        before, after = await current_revision(url), await upgrade(url)
        if before != after:
            async with Target.find(data).database() as database:
                await append_entry(database, "schema.migrate", after, f"{before or 'nothing'} -> {after}")
        return {"before": before, "revision": after}
    except ValueError as error:
        raise CommandFailed(f"DATABASE_URL: {error}", exit_code=2) from None
    except StoreUnavailable as error:
        raise CommandFailed(str(error)) from None
