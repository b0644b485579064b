"""Quantize a published model: check the request, download the base, write the variant, compare the two, publish.

Until the variant is published, the catalog is unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from catalog.builtin import builtin_models
from catalog.card import BASE_MODEL, CardFacts, ModelCard, parse_model_id
from catalog.errors import InvalidModelId
from catalog.manifest import Accuracy
from catalog.manifest import Recipe as PublishedRecipe
from catalog.model_folder import ModelFolder, inspect_folder
from catalog.registry import Registry
from engine.checkpoints.weights import WeightsError
from engine.models.config import UnsupportedModel
from engine.serving.disk_cache import CacheFull, DiskCache
from engine.serving.model_store import ModelStore, ModelUnavailable
from engine.text.files import TokenizerUnusable
from storage.database import Database
from storage.objects import Objects
from telemetry.clock import SYSTEM_CLOCK
from variants.comparison import OnProgress, Pair, Quality, Speed, TextTooShort, read_tokens
from variants.recipe import METHOD, Recipe, RecipeError, make_recipe
from variants.staging import staging_folder
from variants.variant import Plan, Written, plan_variant, write_variant

OWN_TEXT = Path(__file__).with_name("comparison_text.txt")  # plain English, for a request without a text
_MAX_TEXT_BYTES = 4 * 1024 * 1024
_CACHE_BYTES = 1 << 50  # unlimited: the cache is a temporary folder

Connect = Callable[[], AbstractAsyncContextManager[tuple[Database, Objects]]]
Publish = Callable[[Database, Objects, ModelFolder, CardFacts, PublishedRecipe], Awaitable[ModelCard]]


class QuantizeError(Exception):
    """The request cannot be fulfilled. `is_usage` is True if one of its options is wrong."""

    def __init__(self, message: str, *, is_usage: bool = False) -> None:
        super().__init__(message)
        self.is_usage = is_usage


@dataclass(frozen=True)
class Request:
    """Options of `hearth model quantize`. `name` defaults to MODEL-FORMAT; `output` is a folder for a copy.

    `text` is the file to compare on, by default one of the project's own.
    """

    model: str
    number_format: str
    group_size: int | None
    name: str | None
    text: Path | None
    staging: Path | None
    output: Path | None
    num_threads: int

    def name_of(self, base: str) -> str:
        """Return the variant's model id."""
        return self.name or f"{base}-{self.number_format}"


@dataclass(frozen=True)
class _Variant:
    """A variant in `folder`, its recipe, and the report of its quality and speed."""

    folder: Path
    recipe: PublishedRecipe
    report: dict[str, Any]


def quantize(
    request: Request, connect: Connect, publish: Publish, on_progress: OnProgress
) -> tuple[ModelCard, dict[str, Any]]:
    """Quantize and publish a model. Return the variant's card and the report of its quality and speed.

    `connect` opens the database and the object store, `publish` publishes a folder there. Both run in event loops of
    their own; the model is quantized between them without one, so that Ctrl-C works at once. Raises QuantizeError,
    and what `connect` and `publish` raise.
    """
    recipe, text = _check_request(request)
    with staging_folder(request.staging) as staging:

        async def fetch() -> tuple[ModelCard, Path]:
            async with connect() as (database, objects):
                return await _fetch_base(database, objects, request, staging)

        base, base_folder = asyncio.run(fetch())
        variant = _make_variant(request, recipe, text, base, base_folder, staging / "variant", on_progress)
        folder, facts = inspect_folder(variant.folder), _variant_facts(base, request, variant)

        async def publish_variant() -> ModelCard:
            async with connect() as (database, objects):
                return await publish(database, objects, folder, facts, variant.recipe)

        card = asyncio.run(publish_variant())
        if request.output is not None:
            shutil.copytree(variant.folder, request.output)
    return card, variant.report


def _check_request(request: Request) -> tuple[Recipe, str]:
    """Return the recipe and the text for the comparison. Raises QuantizeError."""
    try:
        recipe = make_recipe(request.number_format, request.group_size)
    except RecipeError as error:
        raise QuantizeError(str(error), is_usage=True) from None
    _check_name(request.name)
    num_cores = os.cpu_count() or 1
    if not 1 <= request.num_threads <= num_cores:
        reason = "less than 1" if request.num_threads < 1 else f"more than the {num_cores} cores of this machine"
        raise QuantizeError(f"--threads: {request.num_threads} is {reason}", is_usage=True)
    if request.output is not None and request.output.exists():
        raise QuantizeError(f"--output: {request.output} exists", is_usage=True)
    return recipe, _read_text(request.text)


async def _fetch_base(database: Database, objects: Objects, request: Request, staging: Path) -> tuple[ModelCard, Path]:
    """Return the model that a name or alias refers to, and a folder with its verified files. Raises QuantizeError."""
    registry = Registry(database)
    await registry.refresh()
    found = registry.find(request.model)
    if found is None:
        raise QuantizeError(f"{request.model} is not in the catalog", is_usage=True)
    base = found.card
    _check_name_is_free(registry, base, request)
    if base.task != "Text Generation":
        raise QuantizeError(f"{base.name} is for {base.task}; only Text Generation models have variants", is_usage=True)
    size_bytes = sum(file.size_bytes for file in base.files)
    needed, free = size_bytes * (1 if base.source == "builtin" else 2), shutil.disk_usage(staging).free
    if needed > free:
        raise QuantizeError(f"--staging: {staging.parent} has {free} bytes free; {needed} are needed")
    cache = DiskCache(staging / "base", _CACHE_BYTES)
    try:
        local = await ModelStore(cache, objects).open(base.name, base.revision)
    except (ModelUnavailable, CacheFull) as error:
        raise QuantizeError(str(error)) from None
    finally:
        cache.close()
    return base, local.folder


def _make_variant(
    request: Request,
    recipe: Recipe,
    text: str,
    base: ModelCard,
    base_folder: Path,
    folder: Path,
    on_progress: OnProgress,
) -> _Variant:
    """Write the variant into the new folder `folder` and compare it with its base. Raises QuantizeError."""
    folder.mkdir()
    with _engine_errors(base.name):
        torch.set_num_threads(request.num_threads)
        plan, token_ids = plan_variant(base_folder, recipe), read_tokens(base_folder, text)
        written = write_variant(
            base_folder, plan, folder, lambda done, total: on_progress("quantizing", done, total, "bytes")
        )
        is_float8 = recipe.format == "fp8"
        pair = Pair(base_folder, folder, request.num_threads, is_float8=is_float8)
        accuracy = _accuracy(text, pair.compare(token_ids, on_progress))
        report = _report(plan, written, accuracy, None if is_float8 else pair.race(on_progress))
    published = PublishedRecipe(
        base=base.revision,
        format=recipe.format,
        group_size=recipe.group_size,
        method=METHOD,
        accuracy=accuracy if is_float8 else msgspec.UNSET,
    )
    return _Variant(folder, published, report)


def _variant_facts(base: ModelCard, request: Request, variant: _Variant) -> CardFacts:
    """Return the base's facts with the variant's name and description, and the report as properties."""
    values = {name: getattr(base, name) for name in CardFacts.__struct_fields__}
    properties = {BASE_MODEL: base.name} | {name: str(value) for name, value in variant.report.items()}
    changes = {
        "name": request.name_of(base.name),
        "description": f"{base.description} ({request.number_format})",
        "created_at": SYSTEM_CLOCK.now(),
        "tags": tuple(dict.fromkeys((*base.tags, request.number_format))),
        "properties": base.properties | properties,
        "planned_deprecation_date": None,
    }
    try:
        return msgspec.convert(values | changes, CardFacts)
    except (msgspec.ValidationError, InvalidModelId) as error:
        raise QuantizeError(f"--name: {error}", is_usage=True) from None


def _check_name(name: str | None) -> None:
    if name is None:
        return
    try:
        if parse_model_id(name) in builtin_models():
            raise QuantizeError(f"--name: {name} is built in and cannot be replaced", is_usage=True)
    except InvalidModelId as error:
        raise QuantizeError(f"--name: {error}", is_usage=True) from None


def _check_name_is_free(registry: Registry, base: ModelCard, request: Request) -> None:
    """Raise QuantizeError if the variant's name belongs to anything but an earlier version of the same variant."""
    name = request.name_of(base.name)
    found = registry.find(name)
    if found is None:
        return
    is_alias, properties = found.alias_of is not None, found.card.properties
    is_same = (properties.get(BASE_MODEL), properties.get("format")) == (base.name, request.number_format)
    if is_alias or not is_same:
        owner = f"an alias of {found.card.name}" if is_alias else "another model"
        raise QuantizeError(f"--name: {name} is already {owner}", is_usage=True)


def _read_text(path: Path | None) -> str:
    path = path or OWN_TEXT
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TEXT_BYTES).decode("utf-8", "ignore")
    except OSError as error:
        raise QuantizeError(f"--text: {path}: {error.strerror}", is_usage=True) from None


@contextlib.contextmanager
def _engine_errors(name: str) -> Iterator[None]:
    """Convert the engine's errors about a model or a text to QuantizeError."""
    try:
        yield
    except TextTooShort as error:
        raise QuantizeError(f"--text: {error}", is_usage=True) from None
    except RecipeError as error:
        message = str(error) if str(error).startswith("--") else f"{name}: {error}"
        raise QuantizeError(message, is_usage=True) from None
    except (UnsupportedModel, WeightsError, TokenizerUnusable) as error:
        raise QuantizeError(f"{name}: {error}") from None


def _accuracy(text: str, quality: Quality) -> Accuracy:
    return Accuracy(
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        compared_tokens=quality.num_tokens,
        perplexity=round(quality.variant_perplexity, 4),
        base_perplexity=round(quality.base_perplexity, 4),
        top1_agreement=round(quality.top1_agreement, 4),
        kl_divergence=round(quality.kl_divergence, 5),
    )


def _report(plan: Plan, written: Written, accuracy: Accuracy, speed: Speed | None) -> dict[str, Any]:
    report = {
        "format": plan.recipe.format,
        "group_size": plan.recipe.group_size,
        "rounded_matrices": len(written.rounded),
        "kept_matrices": len(written.kept),
        **{name: value for name, value in msgspec.structs.asdict(accuracy).items() if name != "text_sha256"},
    }
    if speed is not None:
        report["speed_ratio_1"] = round(speed.variant_one / speed.base_one, 2)
        report["speed_ratio_16"] = round(speed.variant_sixteen / speed.base_sixteen, 2)
    return report | {"size_ratio": round(written.variant_bytes / written.base_bytes, 3)}
