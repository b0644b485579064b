"""Shared parts of management endpoints: typed bodies and queries, pages, and responses in the envelope.

A `ManagementRequest` knows the account, the caller and the context of a change. `takes_body` and `takes_query` parse a
request into a msgspec Struct and declare the same Struct for the OpenAPI document. A new endpoint is a function with
one of these decorators and a line in the route table of `gateway/app.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.http import json_body, struct_fields
from gateway.http.exchange import Exchange, Receive, Scope
from gateway.openapi.operation import describe
from gateway.parsing_turns import takes_long
from gateway.services import Services
from storage.errors import Missing
from telemetry.fair_share import current_account
from tenants.change_context import ChangeContext
from tenants.credentials.principal import Principal
from tenants.versions import VersionChanged

MAX_BODY_BYTES = 128 * 1024
MAX_PUBLIC_BODY_BYTES = 4 * 1024  # limit for a request without a verified credential
DEFAULT_PER_PAGE, MAX_PER_PAGE = 20, 1000
MAX_SUBJECT = 64  # characters of an audit entry's subject, the width of the column

Count = Annotated[int, Meta(ge=0, le=999_999_999)]

_Body = TypeVar("_Body", bound=Struct)
_Query = TypeVar("_Query", bound=Struct)
_Row = TypeVar("_Row")


class ManagementRequest(Request):
    """A request to a management route, and what its handler needs to know about the caller."""

    def __init__(self, services: Services, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        self._services = services

    @property
    def account_id(self) -> str:
        """The account in the path."""
        return str(self.path_params["account_id"])

    @property
    def principal(self) -> Principal:
        """The authenticated caller. Routes with public access have none."""
        principal: Principal = self.scope["hearth.principal"]
        return principal

    @property
    def exchange(self) -> Exchange:
        exchange: Exchange = self.scope["hearth.exchange"]
        return exchange

    async def authorize_again(self) -> Principal:
        """Return the caller after verifying the credential and its permissions again. Raises Refusal,
        StoreUnavailable."""
        principal: Principal = await self.scope["hearth.authorize"]()
        return principal

    @property
    def expected_versions(self) -> frozenset[str] | None:
        """The versions in `if-match`; None if the header is missing or `*`, so any version may be changed."""
        header = self.headers.get("if-match", "*").strip()
        if header == "*":
            return None
        return frozenset(each.strip().removeprefix("W/").strip('"') for each in header.split(","))

    def note(self, action: str, subject_id: str, detail: str = "") -> Callable[[AsyncConnection], Awaitable[None]]:
        """Return a function that appends an audit entry of the platform, which belongs to no account."""

        async def append(connection: AsyncConnection) -> None:
            await self.change_context.record(connection, action, "", subject_id[:MAX_SUBJECT], detail)

        return append

    @property
    def change_context(self) -> ChangeContext:
        """The context of a change by the caller."""
        return ChangeContext(self.principal.api_token_id, self._services.clock, self._services.ephemeral)


Endpoint = Callable[[Services, ManagementRequest], Awaitable[Response]]

_WAITS_ITSELF = "hearth_waits_itself"


def waits_itself(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that must not hold its account's turn for its whole run: it waits for its client, or has limits
    of its own."""
    setattr(endpoint, _WAITS_ITSELF, True)
    return endpoint


async def call_in_turn(services: Services, endpoint: Endpoint, request: ManagementRequest) -> Response:
    """Call an endpoint when it is the turn of the caller, so that many requests of one account do not delay others."""
    if "hearth.principal" not in request.scope or getattr(endpoint, _WAITS_ITSELF, False):
        return await endpoint(services, request)
    async with services.management_turns.slot(request.principal.party):
        return await endpoint(services, request)


def takes_body(
    type_: type[_Body],
    *,
    permit: Callable[[Principal], None] | None = None,
    is_optional: bool = False,
    is_ai: bool = False,
) -> Callable[[Callable[[Services, ManagementRequest, _Body], Awaitable[Response]]], Endpoint]:
    """Return a decorator that passes the JSON body to an endpoint as a `type_`.

    `permit` is called with the principal before the body is read and raises Refusal. With `is_optional`, a missing
    body counts as an empty object. With `is_ai`, errors have the codes and texts of Workers AI's routes.
    """

    def decorate(handler: Callable[[Services, ManagementRequest, _Body], Awaitable[Response]]) -> Endpoint:
        @waits_itself
        @describe(body=type_)
        @functools.wraps(handler)
        async def endpoint(services: Services, request: ManagementRequest) -> Response:
            if permit is not None:
                permit(request.principal)
            is_missing = is_optional and not _has_body(request)
            values = {} if is_missing else await read_object(services, request, is_ai=is_ai)
            try:
                body = struct_fields.convert(values, type_)
            except struct_fields.FieldError as error:
                raise (invalid_ai_input(error) if is_ai else invalid(str(error))) from None
            if "hearth.principal" not in request.scope:
                return await handler(services, request, body)
            async with services.management_turns.slot(request.principal.party):
                return await handler(services, request, body)

        return endpoint

    return decorate


def takes_query(
    type_: type[_Query],
) -> Callable[[Callable[[Services, ManagementRequest, _Query], Awaitable[Response]]], Endpoint]:
    """Return a decorator that passes the query to an endpoint as a `type_`. Empty parameters count as missing."""

    def decorate(handler: Callable[[Services, ManagementRequest, _Query], Awaitable[Response]]) -> Endpoint:
        @describe(query=type_)
        @functools.wraps(handler)
        async def endpoint(services: Services, request: ManagementRequest) -> Response:
            values = {name: value for name, value in request.query_params.items() if value}
            try:
                query = struct_fields.convert(values, type_, from_text=True)
            except struct_fields.FieldError as error:
                rule = "is missing" if error.is_missing else f"must be {error.expected}"
                raise invalid_query(error.path, rule) from None
            return await handler(services, request, query)

        return endpoint

    return decorate


async def read_object(services: Services, request: ManagementRequest, *, is_ai: bool = False) -> dict[str, Any]:
    """Return the JSON object in the body. Raises Refusal."""
    exchange, is_public = request.exchange, "hearth.principal" not in request.scope
    max_bytes = MAX_PUBLIC_BODY_BYTES if is_public else MAX_BODY_BYTES
    exchange.check_content_length(max_bytes)
    body = await exchange.read_body(max_bytes, services.settings.body_timeout_s)
    try:
        if not takes_long(body):
            return json_body.parse(body)
        return await services.parsing_turns.parse(current_account.get(), functools.partial(json_body.parse, body))
    except Refusal as refusal:
        # By default these reasons are reported as errors of an AI run, which a management call is not.
        if not is_ai and refusal.reason in (Reason.BODY_INVALID, Reason.INPUT_INVALID):
            raise invalid(f"the request body is invalid: {refusal.detail}") from None
        raise


def existing(found: _Row | None) -> _Row:
    """Return the object that was found; respond with 404 if there is none."""
    if found is None:
        raise Refusal(Reason.OBJECT_UNKNOWN)
    return found


@contextmanager
def change_errors(field: str = "") -> Iterator[None]:
    """Respond with 404 if the object of a change does not exist, with 412 if its version is not the expected one, and
    with 400 if the value of `field` is invalid."""
    try:
        yield
    except Missing:
        raise Refusal(Reason.OBJECT_UNKNOWN) from None
    except VersionChanged:
        raise Refusal(Reason.VERSION_CHANGED) from None
    except ValueError as error:
        raise invalid(f"{field}: {error}" if field else str(error)) from None


def invalid(message: str) -> Refusal:
    """Return the error for an invalid field of a body. `message` names the field and never contains its value."""
    return Refusal(Reason.OBJECT_INVALID, message)


def invalid_query(name: str, rule: str) -> Refusal:
    """Return the error for an invalid query parameter."""
    return Refusal(Reason.QUERY_INVALID, f"the query parameter '{name}' {rule}")


def respond(result: Any, *, messages: list[dict[str, Any]] | None = None, version: str = "") -> Response:
    """Return a successful response with `result` in the envelope. `version` is sent as the ETag."""
    headers = {"etag": f'"{version}"'} if version else None
    return Response(envelope.success(result, messages=messages), headers=headers, media_type="application/json")


def format_time(time: datetime) -> str:
    """Return a time as the API writes times: in UTC, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class PageQuery(Struct, frozen=True, kw_only=True):
    """The query parameters of a paged list. Pages count from 1; sizes are clamped to 1 to MAX_PER_PAGE."""

    page: Count = 1
    per_page: Count = DEFAULT_PER_PAGE
    direction: Literal["asc", "desc"] = "asc"

    @property
    def number(self) -> int:
        """The page number."""
        return max(1, self.page)

    @property
    def size(self) -> int:
        """The number of rows per page."""
        return min(max(1, self.per_page), MAX_PER_PAGE)

    @property
    def is_descending(self) -> bool:
        """True if the rows are requested in reverse order."""
        return self.direction == "desc"

    def slice(self, rows: Sequence[_Row]) -> list[_Row]:
        """Return this page of a complete list."""
        ordered = list(reversed(rows)) if self.is_descending else list(rows)
        return ordered[(self.number - 1) * self.size : self.number * self.size]

    def respond(self, rows: Sequence[Any], total_count: int) -> Response:
        """Return one page. A page past the end is empty, which is how clients know to stop."""
        info = envelope.page_info(self.number, self.size, len(rows), total_count)
        return Response(envelope.success(list(rows), result_info=info), media_type="application/json")


def _has_body(request: ManagementRequest) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def invalid_ai_input(error: struct_fields.FieldError) -> Refusal:
    if error.is_missing:
        *parents, name = error.path.split("/")
        return Refusal(Reason.INPUT_INVALID, f"required properties at '/{'/'.join(parents)}' are '{name}'")
    return Refusal(Reason.INPUT_INVALID, f"'/{error.path}' must be {error.expected}")
