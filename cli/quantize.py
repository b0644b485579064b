"""`hearth model quantize`: a published model becomes a variant in another number format, under an id of its own.

Fetches, has `variants` write and compare, publishes; whatever ends it before leaves the catalog as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from cli.output import CommandFailed

if TYPE_CHECKING:
    from catalog.card import CardFacts, ModelCard
    from catalog.manifest import Recipe as PublishedRecipe
    from catalog.registry import Registry
    from storage.database import Database
    from storage.objects import Objects
    from variants.comparison import Quality, Speed
    from variants.recipe import Recipe
    from variants.variant import Plan, Written

_SAMPLE_TEXT = "text/tinyshakespeare.txt"  # in HEARTH_TEST_DATA
_MAX_TEXT_BYTES = 4 * 1024 * 1024
_STAGING_PREFIX = "hearth-quantize-"
_CACHE_BYTES = 1 << 50  # of a folder that lives as long as the command


@dataclass(frozen=True)
class Request:
    """What was asked for. `name` None: the model's own, with the format behind it. `output` None: nothing is kept."""

    model: str
    number_format: str
    group_size: int | None
    name: str | None
    text: Path | None
    staging: Path | None
    output: Path | None
    num_threads: int

    def name_of(self, base: str) -> str:
        """The variant's id."""
        return self.name or f"{base}-{self.number_format}"


@dataclass(frozen=True)
class Made:
    """A variant in `folder`, how it was made and what it is like."""

    folder: Path
    recipe: PublishedRecipe
    report: dict[str, Any]


def check_request(request: Request) -> tuple[Recipe, str]:
    """The recipe, and the text to compare on. Raises CommandFailed before anything is fetched."""
    try:
        from variants.recipe import RecipeError, make_recipe
    except ImportError as error:
        raise CommandFailed(f"this needs the engine: pip install 'hearth[engine]' ({error.name} is missing)") from None
    try:
        recipe = make_recipe(request.number_format, request.group_size)
    except RecipeError as error:
        raise CommandFailed(str(error), exit_code=2) from None
    _check_name(request.name)
    if request.num_threads < 1:
        raise CommandFailed(f"--threads: {request.num_threads} is less than 1", exit_code=2)
    num_cores = os.cpu_count() or 1
    if request.num_threads > num_cores:
        raise CommandFailed(f"--threads: {request.num_threads} is more than the {num_cores} cores here", exit_code=2)
    if request.output is not None and request.output.exists():
        raise CommandFailed(f"--output: {request.output} exists", exit_code=2)
    return recipe, _read_text(request.text)


def _check_name(name: str | None) -> None:
    from catalog.builtin import builtin_models
    from catalog.card import parse_model_id
    from catalog.errors import InvalidModelId

    if name is None:
        return
    try:
        if parse_model_id(name) in builtin_models():
            raise CommandFailed(f"--name: {name} is built in and cannot be replaced", exit_code=2)
    except InvalidModelId as error:
        raise CommandFailed(f"--name: {error}", exit_code=2) from None


def variant_facts(base: ModelCard, request: Request, made: Made) -> CardFacts:
    """The base's facts, with what differs: name, description, and the report under `properties`."""
    import msgspec

    from catalog.card import CardFacts
    from catalog.errors import InvalidModelId
    from telemetry.clock import SYSTEM_CLOCK

    values = {name: getattr(base, name) for name in CardFacts.__struct_fields__}
    properties = {"base_model": base.name} | {name: str(value) for name, value in made.report.items()}
    tags = (*base.tags, request.number_format)
    try:
        return msgspec.convert(
            values
            | {
                "name": request.name_of(base.name),
                "description": f"{base.description} ({request.number_format})",
                "created_at": SYSTEM_CLOCK.now(),
                "tags": tuple(dict.fromkeys(tags)),
                "properties": base.properties | properties,
                "planned_deprecation_date": None,
            },
            CardFacts,
        )
    except (msgspec.ValidationError, InvalidModelId) as error:
        raise CommandFailed(f"--name: {error}", exit_code=2) from None


async def fetch_base(database: Database, objects: Objects, request: Request, staging: Path) -> tuple[ModelCard, Path]:
    """The model that a name or alias means, and a folder with its files, verified. Raises CommandFailed."""
    from catalog.registry import Registry

    registry = Registry(database)
    await registry.refresh()
    found = registry.find(request.model)
    if found is None:
        raise CommandFailed(f"{request.model} is no model of this catalog", exit_code=2)
    base = found.card
    _refuse_taken(registry, base, request)
    if base.task != "Text Generation":
        raise CommandFailed(f"{base.name} is for {base.task}; only models of Text Generation have variants", 2)
    size_bytes = sum(file.size_bytes for file in base.files)
    _require_room(staging, size_bytes if base.source == "builtin" else 2 * size_bytes)
    return base, await _fetch(base, objects, staging)


def _refuse_taken(registry: Registry, base: ModelCard, request: Request) -> None:
    """Only an earlier version of the same variant gives way to a new one. Raises CommandFailed."""
    name = request.name_of(base.name)
    found = registry.find(name)
    if found is None:
        return
    is_alias, properties = found.alias_of is not None, found.card.properties
    wanted = (base.name, request.number_format)
    if is_alias or (properties.get("base_model"), properties.get("format")) != wanted:
        what = f"an alias of {found.card.name}" if is_alias else "another model"
        raise CommandFailed(f"--name: {name} is {what} already", exit_code=2)


def make_variant(request: Request, recipe: Recipe, text: str, base: ModelCard, base_folder: Path, folder: Path) -> Made:
    """Write the variant into `folder` and compare it with its base. Outside of any event loop: Ctrl-C ends it at once.

    Raises CommandFailed.
    """
    from catalog.manifest import Recipe as PublishedRecipe
    from variants.recipe import METHOD

    folder.mkdir()
    with _refusals(base.name):
        report = _write_and_compare(base_folder, folder, recipe, text, request.num_threads)
    published = PublishedRecipe(base=base.revision, format=recipe.format, group_size=recipe.group_size, method=METHOD)
    return Made(folder, published, report)


def _write_and_compare(base: Path, folder: Path, recipe: Recipe, text: str, num_threads: int) -> dict[str, Any]:
    import torch

    from variants.comparison import Pair, read_tokens
    from variants.variant import plan_variant, write_variant

    torch.set_num_threads(num_threads)
    plan, token_ids = plan_variant(base, recipe), read_tokens(base, text)
    written = write_variant(base, plan, folder, _tell("rounding"))
    sys.stderr.write("comparing with the base\n")
    pair = Pair(base, folder, num_threads)
    return _report(plan, written, pair.compare(token_ids), pair.race())


def _report(plan: Plan, written: Written, quality: Quality, speed: Speed) -> dict[str, Any]:
    return {
        "format": plan.recipe.format,
        "group_size": plan.recipe.group_size,
        "rounded_matrices": len(written.rounded),
        "kept_matrices": len(written.kept),
        "compared_tokens": quality.num_tokens,
        "perplexity": round(quality.variant_perplexity, 4),
        "base_perplexity": round(quality.base_perplexity, 4),
        "top1_agreement": round(quality.top1_agreement, 4),
        "kl_divergence": round(quality.kl_divergence, 5),
        "speed_ratio_1": round(speed.variant_one / speed.base_one, 2),
        "speed_ratio_16": round(speed.variant_sixteen / speed.base_sixteen, 2),
        "size_ratio": round(written.variant_bytes / written.base_bytes, 3),
    }


@contextlib.contextmanager
def staging_folder(parent: Path | None) -> Iterator[Path]:
    """A folder of this command's own, removed when it ends, also by Ctrl-C or a polite signal. What one that was killed
    has left goes first."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent or Path(tempfile.gettempdir()))
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with (
            tempfile.TemporaryDirectory(prefix=_STAGING_PREFIX, dir=parent) as folder,
            (Path(folder) / "lock").open("w") as lock,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for as long as this process lives
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _remove_abandoned(parent: Path) -> None:
    """Folders of commands that are no more: nobody holds their lock."""
    for lock_path in parent.glob(f"{_STAGING_PREFIX}*/lock"):
        with contextlib.suppress(OSError), lock_path.open("w") as lock:  # another's, or just going
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_path.parent, ignore_errors=True)


async def _fetch(base: ModelCard, objects: Objects, staging: Path) -> Path:
    """The base's folder, every file of it verified."""
    from engine.serving.disk_cache import CacheFull, DiskCache
    from engine.serving.model_store import ModelStore, ModelUnavailable

    cache = DiskCache(staging / "base", _CACHE_BYTES)
    try:
        local = await ModelStore(cache, objects).open(base.name, base.revision)
    except (ModelUnavailable, CacheFull) as error:
        raise CommandFailed(str(error)) from None
    finally:
        cache.close()
    return local.folder


@contextlib.contextmanager
def _refusals(name: str) -> Iterator[None]:
    """What the engine refuses of a model or a text, as one line."""
    from engine.checkpoints.weights import WeightsError
    from engine.models.config import UnsupportedModel
    from engine.text.files import TokenizerUnusable
    from variants.comparison import TextTooShort
    from variants.recipe import RecipeError

    try:
        yield
    except TextTooShort as error:
        raise CommandFailed(f"--text: {error}", exit_code=2) from None
    except RecipeError as error:
        raise CommandFailed(f"{name}: {error}" if not str(error).startswith("--") else str(error), 2) from None
    except (UnsupportedModel, WeightsError, TokenizerUnusable) as error:
        raise CommandFailed(f"{name}: {error}") from None


def _require_room(staging: Path, needed: int) -> None:
    free = shutil.disk_usage(staging).free
    if needed > free:
        raise CommandFailed(f"--staging: {staging.parent} has {free} bytes free; {needed} are needed")


def _read_text(path: Path | None) -> str:
    if path is None:
        data = os.environ.get("HEARTH_TEST_DATA")
        if not data:
            raise CommandFailed("give --text FILE, some text to compare on, or set HEARTH_TEST_DATA", exit_code=2)
        path = Path(data) / _SAMPLE_TEXT
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TEXT_BYTES).decode("utf-8", "ignore")
    except OSError as error:
        raise CommandFailed(f"--text: {path}: {error.strerror}", exit_code=2) from None


def _tell(verb: str) -> Callable[[int, int], None]:
    """A line every tenth of the work, on standard error."""
    told = -1

    def tell(done: int, total: int) -> None:
        nonlocal told
        tenth = 10 * done // max(total, 1)
        if tenth > told:
            told = tenth
            sys.stderr.write(f"{verb}: {done} of {total} tensors\n")

    return tell
