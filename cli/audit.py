"""`hearth audit`: list audit entries, and verify that the audit log is complete and unchanged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.audit_entries import PLATFORM
from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import DataOption, Target
from cli.token import check_account

app = typer.Typer(help="Audit log: list entries, verify that the log is intact.", no_args_is_help=True)
COLUMNS = ("sequence", "at", "actor", "action", "subject_id", "detail")

HeadsOption = Annotated[
    Path | None,
    typer.Option(
        "--heads", help="File with heads of the hash chain recorded earlier. Default: the file of this platform.",
        show_default=False,
    ),
]  # fmt: skip


@app.command("list")
def list_(
    account_id: Annotated[
        str, typer.Argument(help="Account id. Default: entries of the platform itself.", show_default=False)
    ] = PLATFORM,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of entries.")] = 50,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List the audit entries of an account, or of the platform (models, service keys, users), newest first."""
    print_rows(asyncio.run(_list(data, account_id, limit)), COLUMNS, is_json=json, empty="no entries yet")


@app.command()
def verify(heads: HeadsOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """Verify the whole audit log. Fails if an entry was changed, moved or deleted."""
    found = asyncio.run(verify_chain(Target.find(data), heads))
    problems = found.pop("problems")
    print_record(found | ({"problems": problems} if json else {}), is_json=json)
    if problems:
        raise CommandFailed("the audit log is not intact: " + "; ".join(problems))


@app.command()
def head(
    into: Annotated[Path | None, typer.Option(help="Also append the head to this file.", show_default=False)] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print number and digest of the newest entry. Stored elsewhere, they prove later that no entry is missing."""
    print_record(asyncio.run(_head(data, into)), is_json=json)


async def _list(data: Path | None, account_id: str, limit: int) -> list[dict[str, Any]]:
    from tenants.audit import audit_log as audit

    async with Target.find(data).database() as database:
        if account_id != PLATFORM:
            await check_account(database, account_id)
        entries = await audit.list_recent(database, account_id, limit)
    return [{name: getattr(entry, name) for name in ("audit_id", *COLUMNS)} for entry in entries]


async def verify_chain(target: Target, heads: Path | None) -> dict[str, Any]:
    """Verify the audit log's hash chain against recorded heads, and return the result. Raises CommandFailed."""
    from tenants.audit import audit_heads

    path = heads or _heads_file(target)
    try:
        recorded = audit_heads.read_notes(path) if path is not None else []
    except (OSError, ValueError) as error:
        raise CommandFailed(str(error)) from None
    if heads is not None and not recorded:
        raise CommandFailed(f"{heads} has no head of an audit log")
    async with target.database() as database:
        found = await audit_heads.verify(database, recorded, audit_heads.key_from(target.pepper()))
    return {
        "entries": found.num_entries,
        "head": found.head.digest.hex(),
        "recorded_heads": found.num_heads,
        "is_intact": not found.problems,
        "problems": found.problems,
    }


def _heads_file(target: Target) -> Path | None:
    """Return the file in which this platform's gateway records heads, if known."""
    found = target.environ.get("HEARTH_AUDIT_HEADS", "")
    for environ in target.process_environs.values():
        found = found or environ.get("HEARTH_AUDIT_HEADS", "")
    return Path(found) if found else None


async def _head(data: Path | None, into: Path | None) -> dict[str, Any]:
    from telemetry.clock import SYSTEM_CLOCK
    from tenants.audit import audit_heads
    from tenants.audit import audit_log as audit

    target = Target.find(data)
    async with target.database() as database:
        found = await audit.read_head(database)
    if into is not None:
        line = audit_heads.note(found, SYSTEM_CLOCK.now(), audit_heads.key_from(target.pepper()))
        try:
            with into.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise CommandFailed(f"{into}: {error.strerror}") from None
    return {"sequence": found.sequence, "digest": found.digest.hex()}
