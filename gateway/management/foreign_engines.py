"""`/engines`: foreign engines, which are OpenAI-compatible servers that serve models of the catalog. Only operators
register them, because every gateway connects to their URLs."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from catalog import foreign_engines
from catalog.errors import InvalidModelId
from catalog.foreign_engines import EngineKind, EngineModel, EngineSpec, StoredEngine
from gateway.foreign.engine_link import NODE_ID_PREFIX
from gateway.management.endpoint import (
    ManagementRequest,
    PageQuery,
    change_errors,
    invalid,
    respond,
    takes_body,
    takes_query,
)
from gateway.openapi.operation import describe
from gateway.services import Services


class EngineModelBody(Struct, frozen=True, kw_only=True):
    """One model of an engine. `name` is the engine's own id of the model. `input_usd` and `output_usd` are what the
    engine charges per million tokens. A model that the catalog does not have needs `context_window`, and an embedding
    model `output_dimensions`."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    input_usd: Annotated[float, Meta(ge=0, le=100_000)] = 0
    output_usd: Annotated[float, Meta(ge=0, le=100_000)] = 0
    context_window: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    output_dimensions: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    task: Literal["Text Generation", "Text Embeddings"] = "Text Generation"


class EngineBody(Struct, frozen=True, kw_only=True):
    """The body that registers an engine. `url` is the base URL of its OpenAI routes. `models` maps model ids to the
    engine's models. Without `kind`, the kind of server is detected. Without `key`, the engine keeps its key if scheme,
    host and port of the URL are unchanged. Calls with zero data retention go only to an engine with
    `keeps_no_content`."""

    url: Annotated[str, Meta(min_length=8, max_length=512)]
    models: dict[str, EngineModelBody]
    key: Annotated[str, Meta(pattern="^[!-~]{1,2048}$")] | None = None
    kind: EngineKind | None = None
    pop: Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{0,63}$")] = ""
    max_calls: Annotated[int, Meta(ge=1, le=100_000)] = 64
    keeps_no_content: bool = False


class EngineReport(Struct, frozen=True, kw_only=True):
    """An engine. `is_reachable` and `detail` are those of the gateway that responds; `kind` is as registered or
    detected. The key is never returned."""

    name: str
    node_id: str
    url: str
    models: dict[str, EngineModelBody]
    kind: EngineKind | None
    pop: str
    max_calls: int
    keeps_no_content: bool
    has_key: bool
    is_reachable: bool
    detail: str
    num_calls: int
    created_at: datetime


class RemovedEngine(Struct, frozen=True):
    """The name of a removed engine."""

    name: str


@describe(result=list[EngineReport], is_paged=True)
@takes_query(PageQuery)
async def list_(services: Services, _request: ManagementRequest, query: PageQuery) -> Response:
    """List the foreign engines."""
    found = [_report(services, stored) for stored in await foreign_engines.list_engines(services.database)]
    return query.respond(query.slice(found), len(found))


@describe(result=EngineReport)
@takes_body(EngineBody)
async def register(services: Services, request: ManagementRequest, body: EngineBody) -> Response:
    """Register or replace a foreign engine. Gateways connect within a second; running calls finish."""
    name = str(request.path_params["name"])
    try:
        spec = _spec_of(name, body)
        sealed = None if body.key is None else services.foreign_engines.seal(name, body.key)
        with change_errors():
            note = request.note("engine.register", name, spec.url)
            stored = await foreign_engines.register(services.database, spec, sealed, note=note, clock=services.clock)
    except InvalidModelId as error:
        raise invalid(f"models: {error}") from None
    await services.registry.refresh()
    await services.foreign_engines.refresh()
    return respond(_report(services, stored))


@describe(result=RemovedEngine)
async def remove(services: Services, request: ManagementRequest) -> Response:
    """Remove a foreign engine. Running calls finish."""
    name = str(request.path_params["name"])
    with change_errors():
        await foreign_engines.remove(services.database, name, note=request.note("engine.remove", name))
    await services.registry.refresh()
    await services.foreign_engines.refresh()
    return respond(RemovedEngine(name))


def _spec_of(name: str, body: EngineBody) -> EngineSpec:
    """Return the validated engine. Raises Refusal."""
    values = {field: getattr(body, field) for field in EngineBody.__struct_fields__ if field not in ("key", "models")}
    models = {model_id: _model_of(model) for model_id, model in body.models.items()}
    try:
        return msgspec.convert({"name": name, "models": models, **values}, EngineSpec)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None


def _model_of(body: EngineModelBody) -> dict[str, Any]:
    values = {field: getattr(body, field) for field in EngineModelBody.__struct_fields__}
    prices = {field: Decimal(str(values[field])) for field in ("input_usd", "output_usd")}
    return values | prices


def _report(services: Services, stored: StoredEngine) -> EngineReport:
    spec = stored.spec
    link = services.foreign_engines.link_of(spec.name)
    return EngineReport(
        name=spec.name,
        node_id=NODE_ID_PREFIX + spec.name,
        url=spec.url,
        models={model_id: _model_body(model) for model_id, model in sorted(spec.models.items())},
        kind=spec.kind or (link.kind if link is not None else None),
        pop=spec.pop,
        max_calls=spec.max_calls,
        keeps_no_content=spec.keeps_no_content,
        has_key=stored.sealed_key is not None,
        is_reachable=link is not None and link.is_open,
        detail="not connected yet" if link is None else link.detail,
        num_calls=0 if link is None else link.num_calls,
        created_at=stored.created_at,
    )


def _model_body(model: EngineModel) -> EngineModelBody:
    values = {field: getattr(model, field) for field in EngineModelBody.__struct_fields__}
    return EngineModelBody(**(values | {"input_usd": float(model.input_usd), "output_usd": float(model.output_usd)}))
