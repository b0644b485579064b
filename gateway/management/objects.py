"""What the routes about tenants' objects share: bodies, pages, and answers in the envelope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.http import json_body
from gateway.http.exchange import Exchange
from gateway.services import Services
from tenants.credentials.principal import Principal

MAX_BODY_BYTES = 128 * 1024
DEFAULT_PER_PAGE, MAX_PER_PAGE = 20, 1000

_Row = TypeVar("_Row")


def principal_of(request: Request) -> Principal:
    """Who is calling; every route but the public ones has proven it."""
    principal: Principal = request.scope["hearth.principal"]
    return principal


async def body_of(services: Services, request: Request) -> dict[str, Any]:
    """The JSON object in the body. Raises Refusal; nothing here is an AI run, so none is told as one."""
    exchange: Exchange = request.scope["hearth.exchange"]
    exchange.check_content_length(MAX_BODY_BYTES)
    try:
        return json_body.parse(await exchange.read_body(MAX_BODY_BYTES, services.settings.body_timeout_s))
    except Refusal as refusal:
        if refusal.reason in (Reason.BODY_INVALID, Reason.INPUT_INVALID):
            raise invalid(f"the body: {refusal.detail}") from None
        raise


def invalid(what: str) -> Refusal:
    """A field of an object is not as it must be. `what` names it, and never repeats its value."""
    return Refusal(Reason.OBJECT_INVALID, what)


def answer(result: Any, *, messages: list[dict[str, Any]] | None = None) -> Response:
    return Response(envelope.success(result, messages=messages), media_type="application/json")


@dataclass(frozen=True)
class PageQuery:
    """Which page of a list is asked for; pages count from 1."""

    page: int
    per_page: int
    is_descending: bool

    def cut(self, rows: Sequence[_Row]) -> list[_Row]:
        """This page of rows that are all here."""
        ordered = list(reversed(rows)) if self.is_descending else list(rows)
        return ordered[(self.page - 1) * self.per_page : self.page * self.per_page]

    def answer(self, rows: list[dict[str, Any]], total_count: int) -> Response:
        """One page; past the end it is empty, which is how clients know to stop."""
        info = envelope.page_info(self.page, self.per_page, len(rows), total_count)
        return Response(envelope.success(rows, result_info=info), media_type="application/json")


def page_query(request: Request, per_page: int = DEFAULT_PER_PAGE) -> PageQuery:
    """Sizes out of range are brought into it. Raises Refusal for what is no number."""
    query = request.query_params
    direction = query.get("direction", "asc")
    if direction not in ("asc", "desc"):
        raise Refusal(Reason.QUERY_INVALID, "the query parameter 'direction' must be asc or desc")
    page, size = whole_number(request, "page", 1), whole_number(request, "per_page", per_page)
    return PageQuery(max(1, page), min(max(1, size), MAX_PER_PAGE), direction == "desc")


def whole_number(request: Request, name: str, default: int) -> int:
    """A query parameter. Clients that count in floats write `1.0`. Raises Refusal."""
    text = request.query_params.get(name, "").removesuffix(".0")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Refusal(Reason.QUERY_INVALID, f"the query parameter '{name}' must be a whole number")
    return int(text)


def is_true(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def shown_time(time: datetime) -> str:
    """As the API writes times: to the second, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
