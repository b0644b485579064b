"""`A/ai/v1/responses/{id}`: retrieve, stream, cancel and delete stored responses.

Storage is in `jobs/response_store.py`, the status of background responses in `jobs/background_responses.py`. Responses
belong to the account in the path.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import envelope
from gateway.call import StoredRecord
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange
from gateway.jobs import background_responses
from gateway.management.endpoint import Count, ManagementRequest, invalid, takes_query
from gateway.openapi.operation import describe
from gateway.services import Services

_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
_STREAMED = {
    "application/json": {"schema": {"type": "object"}},
    "text/event-stream": {"schema": {"type": "string"}},
}


class ResponseQuery(msgspec.Struct, frozen=True):
    """Query parameters of a stored response."""

    stream: bool = False
    starting_after: Count | None = None


class InputItemsQuery(msgspec.Struct, frozen=True):
    """Query parameters of the list of input items."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str = ""


@describe(content=_STREAMED)
@takes_query(ResponseQuery)
async def get(services: Services, request: ManagementRequest, query: ResponseQuery) -> Response:
    """Return a stored response with its current status; with `stream`, its events."""
    record = await _find(services, request)
    if query.stream:
        return _Events(services, request, -1 if query.starting_after is None else query.starting_after)
    account_id, response_id = request.principal.account_id, request.path_params["response_id"]
    return _bare(envelope.encode(await background_responses.current(services, account_id, response_id, record)))


async def cancel(services: Services, request: ManagementRequest) -> Response:
    """Cancel a background response. A response that has ended is returned unchanged."""
    record = await _find(services, request)
    account_id, response_id = request.principal.account_id, request.path_params["response_id"]
    if not msgspec.json.decode(record.response)["background"]:
        raise invalid(
            "only a response that was created with 'background' can be cancelled: close its connection instead"
        )
    await background_responses.cancel(services, account_id, response_id)
    record = await _find(services, request)
    return _bare(envelope.encode(await background_responses.current(services, account_id, response_id, record)))


@takes_query(InputItemsQuery)
async def list_input(services: Services, request: ManagementRequest, query: InputItemsQuery) -> Response:
    """List the items of the response's own input, the last first unless `order` is asc."""
    record = await _find(services, request)
    items: list[dict[str, Any]] = msgspec.json.decode(record.input_items)
    if query.order == "desc":
        items.reverse()
    remaining = _after(items, query.after)
    page = remaining[: query.limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return _bare(envelope.encode({"object": "list", "data": page, **ends, "has_more": len(remaining) > query.limit}))


async def delete(services: Services, request: ManagementRequest) -> Response:
    """Delete a stored response; later requests cannot continue from it. An unfinished response must be cancelled
    first."""
    record = await _find(services, request)
    account_id, response_id = request.principal.account_id, request.path_params["response_id"]
    if not background_responses.is_final(await background_responses.current(services, account_id, response_id, record)):
        raise invalid("a response that is not finished cannot be deleted: cancel it first")
    await services.stored_responses.delete(account_id, response_id)
    return _bare(envelope.encode({"id": response_id, "object": "response", "deleted": True}))


class _Events(Response):
    """Streams the events of a response as they come. Holds a concurrency slot like a call."""

    def __init__(self, services: Services, request: ManagementRequest, after: int) -> None:
        super().__init__()
        self._services = services
        self._request = request
        self._after = after
        self.raw_headers = []

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        exchange: Exchange = scope["hearth.exchange"]
        exchange.has_started = False
        account_id, response_id = self._request.principal.account_id, self._request.path_params["response_id"]
        with self._services.admission.enter(account_id) as slot:
            await background_responses.stream(self._services, exchange, slot, response_id, account_id, self._after)


async def _find(services: Services, request: ManagementRequest) -> StoredRecord:
    """Return the stored response. Raises Refusal if this account has none with this id; StoreUnavailable."""
    account_id, response_id = request.principal.account_id, request.path_params["response_id"]
    record = None
    if _RESPONSE_ID.fullmatch(response_id):
        record = await services.stored_responses.find(account_id, response_id)
    if record is None:
        has_storage = not request.principal.residency.is_zero_retention
        raise Refusal(Reason.RESPONSE_UNKNOWN, "" if has_storage else ": this account has zero data retention")
    return record


def _after(items: list[dict[str, Any]], item_id: str) -> list[dict[str, Any]]:
    """Return the items after the one with this id; all if the id is empty, none if it is unknown."""
    if not item_id:
        return items
    ids = [item["id"] for item in items]
    return items[ids.index(item_id) + 1 :] if item_id in ids else []


def _bare(body: bytes) -> Response:
    return Response(body, media_type="application/json")
