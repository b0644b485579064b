"""`/publications`: publish models from a hub or from the object store, in the background."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from catalog import publications
from catalog.card import Prices
from catalog.errors import CatalogError
from catalog.publications import Publication, Source, State, TooManyPublications
from gateway.management.endpoint import (
    ManagementRequest,
    PageQuery,
    existing,
    invalid,
    respond,
    takes_body,
    takes_query,
)
from gateway.openapi.operation import describe
from gateway.services import Services

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_PREFIX = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9._@-]*(/[A-Za-z0-9_@][A-Za-z0-9._@-]*)*/?")
Price = Annotated[float, Meta(ge=0, le=1e12)]


class PublicationPrices(Struct, frozen=True):
    """Prices in neurons per million tokens."""

    input: Price
    output: Price
    cached_input: Price | None = None


class PublicationBody(Struct, frozen=True):
    """The body that publishes a model.

    With the source `hub`, `repository` (such as org/model) names a repository of the Hugging Face hub or of its
    replacement in HF_ENDPOINT, and `revision` a branch, tag or commit. With the source `bucket`, `prefix` names a
    folder in the platform's object store. `file` selects one GGUF file. Without `prices`, the model has those of the
    listed model with its name, or none.
    """

    source: Source
    name: Annotated[str, Meta(max_length=224)]
    repository: Annotated[str, Meta(max_length=200)] | None = None
    revision: Annotated[str, Meta(min_length=1, max_length=128, pattern="^[!-~]+$")] = "main"
    prefix: Annotated[str, Meta(max_length=500)] | None = None
    file: Annotated[str, Meta(max_length=256)] = ""
    prices: PublicationPrices | None = None


class ModelPublication(Struct, frozen=True, kw_only=True):
    """A publication. `detail` is the current step, or why the publication failed; `revision` the published version."""

    id: str
    source: Source
    name: str
    repository: str | None
    prefix: str | None
    file: str
    state: State
    done_bytes: int
    total_bytes: int
    detail: str
    revision: str | None
    created_by: str
    created_at: datetime
    changed_at: datetime
    finished_at: datetime | None


@describe(result=ModelPublication)
@takes_body(PublicationBody)
async def create(services: Services, request: ManagementRequest, body: PublicationBody) -> Response:
    """Publish a model from a hub or from the object store. The publication goes on in the background."""
    if not services.settings.objects_url:
        raise invalid("this gateway has no object store: the operator sets OBJECTS_URL")
    location = _location_in(body)
    try:
        made = await publications.submit(
            services.database,
            body.source,
            location,
            body.name,
            services.clock.now(),
            hub_revision=body.revision if body.source == "hub" else "",
            file=body.file,
            prices=None if body.prices is None else _prices(body.prices),
            created_by=request.principal.api_token_id,
            note=request.note("publication.create", body.name, f"{body.name} from {location}"),
        )
    except CatalogError as error:
        raise invalid(f"name: {error}") from None
    except TooManyPublications as error:
        raise invalid(f"{error}: wait until one has ended, or cancel one") from None
    return respond(render_publication(made))


@describe(result=list[ModelPublication], is_paged=True)
@takes_query(PageQuery)
async def list_(services: Services, _request: ManagementRequest, query: PageQuery) -> Response:
    """List the publications, newest first."""
    offset = (query.number - 1) * query.size
    found, total = await publications.list_all(services.database, query.size, offset=offset)
    return query.respond([render_publication(each) for each in found], total)


@describe(result=ModelPublication)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get a publication with its progress."""
    found = await publications.find(services.database, request.path_params["publication_id"])
    return respond(render_publication(existing(found)))


@describe(result=ModelPublication)
async def cancel(services: Services, request: ManagementRequest) -> Response:
    """Cancel a publication. One that is over stays as it is."""
    publication_id = request.path_params["publication_id"]
    note = request.note("publication.cancel", publication_id)
    found = await publications.cancel(services.database, publication_id, services.clock.now(), note=note)
    return respond(render_publication(existing(found)))


def render_publication(found: Publication) -> ModelPublication:
    """Return a publication as the API renders it."""
    return ModelPublication(
        id=found.publication_id,
        source=found.source,
        name=found.name,
        repository=found.location if found.source == "hub" else None,
        prefix=found.location if found.source == "bucket" else None,
        file=found.file,
        state=found.state,
        done_bytes=found.done_bytes,
        total_bytes=found.total_bytes,
        detail=found.detail,
        revision=found.revision,
        created_by=found.created_by,
        created_at=found.created_at,
        changed_at=found.changed_at,
        finished_at=found.finished_at,
    )


def _location_in(body: PublicationBody) -> str:
    """Return the repository or prefix. Raises Refusal."""
    if body.source == "hub":
        if body.prefix is not None:
            raise invalid("prefix is for the source bucket: send a repository")
        if body.repository is None or not _REPOSITORY.fullmatch(body.repository):
            raise invalid("repository must be the name of a hub repository, such as org/model")
        return body.repository
    if body.repository is not None:
        raise invalid("repository is for the source hub: send a prefix")
    if body.prefix is None or not _PREFIX.fullmatch(body.prefix):
        raise invalid("prefix must be a folder in the object store, such as uploads/my-model")
    return body.prefix.rstrip("/")


def _prices(body: PublicationPrices) -> Prices:
    cached_input = None if body.cached_input is None else Decimal(str(body.cached_input))
    return Prices(Decimal(str(body.input)), Decimal(str(body.output)), cached_input)
