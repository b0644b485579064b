"""`hearth audit`: who did what, and proof that nothing of it was changed. Asks `tenants.audit.audit_log` and prints."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.data_dir import DataOption
from cli.noted import PLATFORM
from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.target import Target
from cli.token import check_account

app = typer.Typer(help="Audit: what was done, and whether its record is whole.", no_args_is_help=True)
COLUMNS = ("sequence", "at", "who", "action", "subject_id", "detail")

HeadsOption = Annotated[
    Path | None,
    typer.Option(
        "--heads", help="Heads that were noted before; where not given, those of this machine's platform.",
        show_default=False,
    ),
]  # fmt: skip


@app.command("list")
def list_(
    account_id: Annotated[
        str, typer.Argument(help="32 hexadecimal digits; the platform itself unless given.", show_default=False)
    ] = PLATFORM,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """What was done to an account, or (models, node keys, users) to the platform itself, newest first."""
    print_rows(asyncio.run(_list(data, account_id, limit)), COLUMNS, is_json=json, empty="nothing yet")


@app.command()
def verify(heads: HeadsOption = None, data: DataOption = None, json: JsonOption = False) -> None:
    """Look at every entry, and fail unless the record is whole: nothing changed, moved, or missing."""
    found = asyncio.run(verified(Target.find(data), heads))
    problems = found.pop("problems")
    print_record(found | ({"problems": problems} if json else {}), is_json=json)
    if problems:
        raise CommandFailed("the audit is not whole: " + "; ".join(problems))


@app.command()
def head(
    into: Annotated[Path | None, typer.Option(help="Note it at the end of this file too.", show_default=False)] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Print the newest entry's place and digest. Kept elsewhere, it tells later whether anything is missing."""
    print_record(asyncio.run(_head(data, into)), is_json=json)


async def _list(data: Path | None, account_id: str, limit: int) -> list[dict[str, Any]]:
    from tenants.audit import audit_log as audit

    async with Target.find(data).database() as database:
        if account_id != PLATFORM:
            await check_account(database, account_id)
        entries = await audit.list_recent(database, account_id, limit)
    return [{name: getattr(entry, name) for name in ("audit_id", *COLUMNS)} for entry in entries]


async def verified(target: Target, heads: Path | None) -> dict[str, Any]:
    """What came of looking at the whole chain. Raises CommandFailed."""
    from tenants.audit import audit_heads

    path = heads or noted_heads(target)
    try:
        noted = audit_heads.read_notes(path) if path is not None else []
    except (OSError, ValueError) as error:
        raise CommandFailed(str(error)) from None
    if heads is not None and not noted:
        raise CommandFailed(f"{heads} holds no head of an audit chain")
    async with target.database() as database:
        found = await audit_heads.verify(database, noted, audit_heads.key_from(target.pepper()))
    return {
        "entries": found.num_entries,
        "head": found.head.digest.hex(),
        "noted_heads": found.num_heads,
        "is_whole": not found.problems,
        "problems": found.problems,
    }


def noted_heads(target: Target) -> Path | None:
    """Where this platform's gateway notes heads, as far as is known."""
    given = target.environ.get("HEARTH_AUDIT_HEADS", "")
    for environ in target.own_environs.values():
        given = given or environ.get("HEARTH_AUDIT_HEADS", "")
    return Path(given) if given else None


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
