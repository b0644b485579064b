"""`hearth finetune`: list and remove LoRA fine-tunes of all accounts, and publish them for all accounts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.stores import failures, stores
from cli.target import DataOption, Target

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from catalog.finetunes import Finetune, Note

app = typer.Typer(help="Fine-tunes: list, publish for all accounts, remove.", no_args_is_help=True)
COLUMNS = ("id", "name", "model", "account", "public", "is_complete", "is_approved", "created_at")


@app.command("list")
def list_(
    account_id: Annotated[str, typer.Option("--account", help="List only the fine-tunes of this account.")] = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List fine-tunes. Those that the operator published belong to no account."""
    rows = [row for row in asyncio.run(_list(data)) if account_id in ("", row["account"])]
    print_rows(rows, COLUMNS, is_json=json, empty="no fine-tunes")


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="Folder with adapter_config.json and adapter_model.safetensors.")],
    name: Annotated[str, typer.Option(help="Name for the `lora` field of calls, such as cf-public-magicoder.")],
    model: Annotated[str, typer.Option(help="Base model.")],
    description: Annotated[str, typer.Option(help="Description.")] = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Publish a fine-tune that all accounts may use."""
    print_record(asyncio.run(_publish(data, folder, name, model, description)), is_json=json)


@app.command()
def approve(
    finetune_id: Annotated[str, typer.Argument(help="Id shown by `hearth finetune list`.", show_default=False)],
    is_withdrawn: Annotated[bool, typer.Option("--withdraw", help="Withdraw the approval.")] = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Approve the present files of a public fine-tune for all accounts, as HEARTH_FINETUNE_APPROVAL requires."""
    print_record(asyncio.run(_approve(data, finetune_id, is_approved=not is_withdrawn)), is_json=json)


@app.command()
def remove(
    finetune_id: Annotated[str, typer.Argument(help="Id shown by `hearth finetune list`.", show_default=False)],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a fine-tune of any account. Calls can no longer use it after two seconds."""
    print_record(asyncio.run(_remove(data, finetune_id)), is_json=json)


async def _list(data: Path | None) -> list[dict[str, Any]]:
    from catalog.finetunes import list_all

    async with Target.find(data).database() as database:
        return [_row(each) for each in await list_all(database)]


async def _publish(data: Path | None, folder: Path, name: str, model: str, description: str) -> dict[str, Any]:
    from catalog import finetunes
    from catalog.base_model import find_base, read_base
    from catalog.card import parse_model_id
    from catalog.registry import Registry
    from weight_files.adapter_files import MAX_RANK

    async with stores(data) as (database, objects):
        with failures():
            registry = Registry(database)
            await registry.refresh()
            card = find_base(registry, model)
            finetune = await finetunes.publish(
                database,
                objects,
                folder,
                name=name,
                model=parse_model_id(model),
                description=description,
                max_rank=MAX_RANK,
                base=await read_base(objects, card),
                note=_entry("finetune.publish", f"{name} for {model}"),
            )
    return _row(finetune)


async def _approve(data: Path | None, finetune_id: str, *, is_approved: bool) -> dict[str, Any]:
    from catalog import finetunes

    action = "finetune.approve" if is_approved else "finetune.withdraw_approval"
    async with Target.find(data).database() as database:
        with failures():
            changed = await finetunes.approve(database, finetune_id, is_approved=is_approved, note=_entry(action, ""))
    if changed is None:
        raise CommandFailed(f"there is no fine-tune {finetune_id}")
    return _row(changed)


async def _remove(data: Path | None, finetune_id: str) -> dict[str, Any]:
    from catalog.finetunes import list_all
    from catalog.finetunes import remove as remove_row

    async with Target.find(data).database() as database:
        found = next((each for each in await list_all(database) if each.finetune_id == finetune_id), None)
        if found is None or not await remove_row(
            database, found.account_id, finetune_id, note=_entry("finetune.remove", f"{found.name} for {found.model}")
        ):
            raise CommandFailed(f"there is no fine-tune {finetune_id}")
    return _row(found)


def _entry(action: str, detail: str) -> Note:
    """Return a function that appends the audit entry of a change."""
    from cli.audit_entries import audit_entry

    async def append(connection: AsyncConnection, changed: Finetune) -> None:
        await audit_entry(action, changed.finetune_id, detail)(connection)

    return append


def _row(finetune: Finetune) -> dict[str, Any]:
    return {
        "id": finetune.finetune_id,
        "name": finetune.name,
        "model": finetune.model,
        "account": finetune.account_id,
        "public": finetune.is_public,
        "is_complete": finetune.revision is not None,
        "is_approved": finetune.is_approved,
        "description": finetune.description,
        "created_at": finetune.created_at,
    }
