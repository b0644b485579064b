"""`hearth model`: list, publish, pull, quantize and alias models. Progress is printed on standard error."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_record, print_rows
from cli.stores import failures, stores
from cli.target import DataOption, Target

if TYPE_CHECKING:
    from catalog.card import CardFacts, ModelCard
    from catalog.manifest import Recipe
    from catalog.model_folder import ModelFolder
    from storage.database import Database
    from storage.objects import Objects
    from variants.quantize import Request

app = typer.Typer(help="Models: list, publish, pull, quantize, alias.", no_args_is_help=True)
COLUMNS = ("name", "task", "source", "context_window", "size", "revision", "alias_of")

NameOption = Annotated[str | None, typer.Option("--name", help="Model id, such as @cf/acme/chat.")]
CardOption = Annotated[Path | None, typer.Option("--card", help="Card in TOML. Default: derived from the files.")]


@app.command("list")
def list_(
    search: Annotated[str, typer.Option(help="Part of a model id or description.")] = "",
    task: Annotated[str, typer.Option(help='Display name of a task, such as "Text Generation".')] = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List models and aliases."""
    rows = asyncio.run(_list(data, search, task))
    if not json:
        rows = [row | {"revision": row["revision"][:12], "size": _size(row["size_bytes"])} for row in rows]
    print_rows(rows, COLUMNS, is_json=json, empty="no models match")


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="Folder with config.json, a tokenizer and *.safetensors.")],
    name: NameOption = None,
    card: CardOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Publish a model from a folder in the Hugging Face layout."""
    print_record(asyncio.run(_publish(data, folder, name, card, json)), is_json=json)


@app.command()
def pull(
    repo_id: Annotated[
        str, typer.Argument(help="Hub repository, such as org/model, or a listed model id.", show_default=False)
    ],
    revision: Annotated[str, typer.Option(help="Branch, tag or commit.")] = "main",
    name: NameOption = None,
    card: CardOption = None,
    staging: Annotated[Path | None, typer.Option(help="Folder for temporary files.")] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Pull a model from the Hugging Face hub (HF_ENDPOINT) and publish it; an interrupted pull is resumed."""
    print_record(asyncio.run(_pull(data, repo_id, revision, name, card, staging, json)), is_json=json)


@app.command()
def quantize(
    model: Annotated[str, typer.Argument(help="Model id or alias.", show_default=False)],
    number_format: Annotated[str, typer.Option("--format", help="int8 or int4.", show_default=False)],
    group_size: Annotated[int | None, typer.Option(help="int4: inputs per scale. Default: 32.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Model id of the variant. Default: MODEL-FORMAT.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text for the comparison. Default: from HEARTH_TEST_DATA.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also copy the variant's files to this folder.")] = None,
    staging: Annotated[Path | None, typer.Option(help="Folder for temporary files.")] = None,
    threads: Annotated[int, typer.Option(help="Engine threads during the comparison.")] = 1,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Publish an int8 or int4 variant of a model, with a report of quality and speed."""
    try:
        from variants.quantize import QuantizeError, Request
    except ImportError as error:
        raise CommandFailed(f"this needs the engine: pip install 'hearth[engine]' ({error.name} is missing)") from None
    request = Request(model, number_format, group_size, name, text, staging, output, threads)
    try:
        with failures():
            print_record(_quantize(data, request, json), is_json=json)
    except QuantizeError as error:
        raise CommandFailed(str(error), exit_code=2 if error.is_usage else 1) from None


@app.command()
def alias(
    name: Annotated[str, typer.Argument(help="Public model id.", show_default=False)],
    target: Annotated[str | None, typer.Argument(help="Model that serves this id.", show_default=False)] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias.")] = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Map a public model id to another model."""
    if remove == (target is not None):
        raise CommandFailed("give a TARGET, or --remove", exit_code=2)
    asyncio.run(_alias(data, name, target))
    print_record({"name": name, "alias_of": target}, is_json=json)


async def _list(data: Path | None, search: str, task: str) -> list[dict[str, Any]]:
    from catalog.aliases import list_aliases
    from catalog.registry import Registry

    async with Target.find(data).database() as database:
        registry = Registry(database)
        await registry.refresh()
        aliases = await list_aliases(database)
    words = search.lower()
    shown = []
    for name in sorted({card.name for card in registry.all()} | aliases.keys()):
        found = registry.find(name)
        if found is None or (task and found.card.task != task):
            continue
        if words in name.lower() or words in found.card.description.lower():
            shown.append(_row(found.card) | {"name": name, "alias_of": found.alias_of})
    return shown


async def _publish(data: Path | None, path: Path, name: str | None, card: Path | None, json: bool) -> dict[str, Any]:
    from catalog.model_folder import inspect_folder

    async with stores(data) as (database, objects):
        folder = await asyncio.to_thread(inspect_folder, path)
        return await _publish_folder(database, objects, folder, _facts(folder, name, card), json)


async def _pull(
    data: Path | None,
    repo_id: str,
    revision: str,
    name: str | None,
    card: Path | None,
    staging: Path | None,
    json: bool,
) -> dict[str, Any]:
    from catalog.model_folder import inspect_folder
    from catalog.pull import pull as pull_files
    from cli.transfer_progress import transfer_progress

    if repo_id.startswith("@"):
        name, repo_id = name or repo_id, _repository_of(repo_id)
    async with stores(data) as (database, objects):
        with transfer_progress(json) as on_progress:
            place = staging or _default_staging()
            pulled = await asyncio.to_thread(pull_files, repo_id, revision, place, on_progress=on_progress)
        folder = await asyncio.to_thread(inspect_folder, pulled.folder)
        facts = _facts(folder, name or f"@hf/{repo_id}", card)
        row = await _publish_folder(database, objects, folder, facts, json)
    await asyncio.to_thread(pulled.remove)
    return row | {"repo_id": repo_id, "commit": pulled.commit}


def _quantize(data: Path | None, request: Request, json: bool) -> dict[str, Any]:
    """Download and publish in event loops; quantize between them without one, so that Ctrl-C works at once."""
    from catalog.model_folder import inspect_folder
    from variants.quantize import check_request, fetch_base, make_variant, variant_facts
    from variants.staging import staging_folder

    recipe, text = check_request(request)
    with staging_folder(request.staging) as staging:

        async def fetch() -> tuple[ModelCard, Path]:
            async with stores(data) as (database, objects):
                return await fetch_base(database, objects, request, staging)

        base, base_folder = asyncio.run(fetch())
        variant = make_variant(
            request, recipe, text, base, base_folder, staging / "variant", lambda line: typer.echo(line, err=True)
        )
        folder, facts = inspect_folder(variant.folder), variant_facts(base, request, variant)

        async def publish_variant() -> dict[str, Any]:
            async with stores(data) as (database, objects):
                return await _publish_folder(database, objects, folder, facts, json, variant.recipe)

        row = asyncio.run(publish_variant())
        if request.output is not None:
            shutil.copytree(variant.folder, request.output)
    return row | variant.report


async def _alias(data: Path | None, name: str, target: str | None) -> None:
    from catalog.aliases import remove_alias, set_alias
    from cli.audit_entries import audit_entry

    async with Target.find(data).database() as database:
        with failures():
            if target is None:
                await remove_alias(database, name, note=audit_entry("model.alias_removed", name, name))
            else:
                await set_alias(database, name, target, note=audit_entry("model.alias", name, f"{name} -> {target}"))


async def _publish_folder(
    database: Database,
    objects: Objects,
    folder: ModelFolder,
    facts: CardFacts,
    json: bool,
    recipe: Recipe | None = None,
) -> dict[str, Any]:
    from catalog.publish import publish as publish_folder
    from cli.audit_entries import append_published
    from cli.transfer_progress import transfer_progress

    with transfer_progress(json) as on_progress:
        published = await publish_folder(
            database,
            objects,
            folder,
            facts,
            recipe=recipe,
            note=append_published,
            on_file=lambda entry, _was_uploaded: on_progress(entry.path, entry.size_bytes, entry.size_bytes),
        )
    return _row(published)


def _facts(folder: ModelFolder, name: str | None, card: Path | None) -> CardFacts:
    """Return the facts of the card, or facts derived from the folder. `name` takes precedence over the card's name."""
    import msgspec

    from catalog.card import parse_facts
    from catalog.listed import listed_models
    from catalog.model_folder import derive_facts, facts_as_listed
    from telemetry.clock import SYSTEM_CLOCK

    if card is None:
        if name is None:
            raise CommandFailed("give a --name or a --card", exit_code=2)
        facts = derive_facts(folder, name, SYSTEM_CLOCK.now())
        if facts.task == "Text Generation" and _can_call_tools(folder.path):
            facts = msgspec.structs.replace(facts, capabilities=facts.capabilities | {"function_calling"})
        listed = listed_models().get(name)
        return facts if listed is None else facts_as_listed(facts, listed)
    facts = parse_facts(card.read_text("utf-8"), str(card))
    return facts if name is None else msgspec.structs.replace(facts, name=name)


def _repository_of(text: str) -> str:
    """Return the hub repository of a listed model. Raises CommandFailed."""
    from catalog.card import RUN_TASKS, parse_model_id
    from catalog.listed import listed_models

    with failures():
        listed = listed_models().get(parse_model_id(text))
    if listed is None:
        raise CommandFailed(f"{text} is no listed model: name a repository of the hub")
    if listed.task not in RUN_TASKS:
        raise CommandFailed(f"{text} is of the task {listed.task}, which nodes do not do yet")
    if listed.hub is None:
        raise CommandFailed(f"no repository is known for {text}: give one, with --name {text}")
    return listed.hub


def _can_call_tools(folder: Path) -> bool:
    """Return True if the chat template has a supported tool call format; False if the engine is not installed."""
    try:
        from engine.text.files import TokenizerUnusable
        from engine.text.tokenizer import Tokenizer
        from engine.tool_calls.tool_format import find_tool_format
    except ImportError:
        return False
    try:
        template = Tokenizer(folder).chat_template
    except TokenizerUnusable:
        return False
    return template is not None and find_tool_format(template.render) is not None


def _default_staging() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hearth" / "pull"


def _row(card: ModelCard) -> dict[str, Any]:
    """Return a model's printed fields."""
    return {
        "name": card.name,
        "task": card.task,
        "source": card.source,
        "context_window": card.context_window,
        "capabilities": sorted(card.capabilities),
        "size_bytes": sum(file.size_bytes for file in card.files),
        "revision": card.revision,
    }


def _size(size_bytes: int) -> str:
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= step:
            return f"{size_bytes / step:.1f} {unit}"
    return f"{size_bytes} B"
