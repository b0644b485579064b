"""`/aliases` and `/deprecations`: changes of the catalog by the platform's administrators. Every gateway follows within
a second."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from catalog import aliases, deprecations
from catalog.deprecations import MAX_REASON_CHARACTERS, Deprecation
from catalog.errors import AliasError, InvalidModelId
from gateway.management.endpoint import (
    ManagementRequest,
    PageQuery,
    change_errors,
    invalid,
    respond,
    takes_body,
    takes_query,
)
from gateway.model_names import find_shown
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants.versions import check_version, version_of

ModelId = Annotated[str, Meta(max_length=224)]


class AliasBody(Struct, frozen=True):
    """The body that sets an alias."""

    target: ModelId


class Alias(Struct, frozen=True):
    """A model id that another model serves. Send `version` as `if-match` with a change."""

    name: str
    target: str
    version: str


class DeprecationBody(Struct, frozen=True):
    """The body that deprecates a model. The model is refused from the UTC day `at` on."""

    at: date
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARACTERS)] = ""
    successor: ModelId | None = None


class ModelDeprecation(Struct, frozen=True):
    """A deprecation. Send `version` as `if-match` with a change."""

    model: str
    at: date
    reason: str
    successor: str | None
    created_at: datetime
    version: str


class RemovedName(Struct, frozen=True):
    """The model id of a removed alias or deprecation."""

    name: str


@describe(result=list[Alias], is_paged=True)
@takes_query(PageQuery)
async def list_aliases(services: Services, _request: ManagementRequest, query: PageQuery) -> Response:
    """List the aliases."""
    found = [_render_alias(*each) for each in (await aliases.list_aliases(services.database)).items()]
    return query.respond(query.slice(found), len(found))


@describe(result=Alias)
@takes_body(AliasBody)
async def set_alias(services: Services, request: ManagementRequest, body: AliasBody) -> Response:
    """Map a model id to another model. With `if-match`, the change is refused if the alias has changed meanwhile."""
    name = request.path_params["model"]
    try:
        with change_errors():
            await aliases.set_alias(
                services.database,
                name,
                body.target,
                check=lambda current: check_version(_alias_version(current), request.expected_versions),
                note=request.note("model.alias", name, f"{name} -> {body.target}"),
                clock=services.clock,
            )
    except AliasError as error:
        raise invalid(f"target: {error}") from None
    except InvalidModelId:
        raise invalid("target must be a model id of the form @cf/<author>/<model>, and so must the alias") from None
    await services.registry.refresh()
    alias = _render_alias(name, body.target)
    return respond(alias, version=alias.version)


@describe(result=RemovedName)
async def remove_alias(services: Services, request: ManagementRequest) -> Response:
    """Remove an alias."""
    name = request.path_params["model"]

    def check(current: str | None) -> None:
        if current is not None:
            check_version(_alias_version(current), request.expected_versions)

    try:
        with change_errors():
            note = request.note("model.alias_removed", name, name)
            await aliases.remove_alias(services.database, name, check=check, note=note)
    except AliasError as error:
        raise invalid(str(error)) from None
    await services.registry.refresh()
    return respond(RemovedName(name))


@describe(result=list[ModelDeprecation], is_paged=True)
@takes_query(PageQuery)
async def list_deprecations(services: Services, _request: ManagementRequest, query: PageQuery) -> Response:
    """List the deprecations that operators have set. Cards can have days of their own, which the model search shows."""
    found = [render_deprecation(each) for each in await deprecations.list_deprecations(services.database)]
    return query.respond(query.slice(found), len(found))


@describe(result=ModelDeprecation)
@takes_body(DeprecationBody)
async def deprecate(services: Services, request: ManagementRequest, body: DeprecationBody) -> Response:
    """Deprecate a model from a day on. With `if-match`, the change is refused if the deprecation has changed
    meanwhile."""
    model = await find_shown(services.registry, request.path_params["model"])
    if body.successor is not None:
        await find_shown(services.registry, body.successor)
    with change_errors("successor or reason"):
        made = await deprecations.set_deprecation(
            services.database,
            model.name,
            body.at,
            reason=body.reason,
            successor=body.successor,
            check=lambda current: check_version(_deprecation_version(current), request.expected_versions),
            note=request.note("model.deprecate", model.name, f"{model.name} from {body.at}"),
            clock=services.clock,
        )
    await services.registry.refresh()
    result = render_deprecation(made)
    return respond(result, version=result.version)


@describe(result=RemovedName)
async def remove_deprecation(services: Services, request: ManagementRequest) -> Response:
    """Remove an operator's deprecation. The day of the model's card applies again."""
    name = request.path_params["model"]

    def check(current: Deprecation | None) -> None:
        if current is not None:
            check_version(_deprecation_version(current), request.expected_versions)

    with change_errors():
        note = request.note("model.undeprecate", name, name)
        await deprecations.remove_deprecation(services.database, name, check=check, note=note)
    await services.registry.refresh()
    return respond(RemovedName(name))


def _render_alias(name: str, target: str) -> Alias:
    return Alias(name, target, _alias_version(target))


def _alias_version(target: str | None) -> str:
    return version_of("alias", target)


def render_deprecation(found: Deprecation) -> ModelDeprecation:
    version = _deprecation_version(found)
    return ModelDeprecation(found.name, found.day, found.reason, found.successor, found.created_at, version)


def _deprecation_version(found: Deprecation | None) -> str:
    return version_of("deprecation", None if found is None else (found.day, found.reason, found.successor))
