"""`A/ai/v1/responses/{id}`: a response told again, whole or as events, its input, its cancellation and its end, while
responses are kept.

What is kept, for how long and under which key is `kept/responses.py`'s, how one in the background stands
`batches/background.py`'s; whose it is says the account in the path.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import envelope
from gateway.call import Record
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange
from gateway.jobs import background_responses as background
from gateway.management.endpoint import Count, invalid, principal_of, takes_query
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
async def get(services: Services, request: Request, query: ResponseQuery) -> Response:
    """The response as it was answered, or as far as it is when it runs in the background; with `stream` as events."""
    record = await _find(services, request)
    if query.stream:
        return _Events(services, request, -1 if query.starting_after is None else query.starting_after)
    account_id, response_id = request.path_params["account_id"], request.path_params["response_id"]
    return _bare(envelope.encode(await background.now(services, account_id, response_id, record)))


async def cancel(services: Services, request: Request) -> Response:
    """End a response that runs in the background; one that is over already stays as it is."""
    record = await _find(services, request)
    account_id, response_id = request.path_params["account_id"], request.path_params["response_id"]
    if not msgspec.json.decode(record.response)["background"]:
        raise invalid(
            "only a response that was created with 'background' can be cancelled: close its connection instead"
        )
    await background.cancel(services, account_id, response_id)
    record = await _find(services, request)
    return _bare(envelope.encode(await background.now(services, account_id, response_id, record)))


@takes_query(InputItemsQuery)
async def list_input(services: Services, request: Request, query: InputItemsQuery) -> Response:
    """The items of its own input, the last first unless `order` is asc."""
    record = await _find(services, request)
    items: list[dict[str, Any]] = msgspec.json.decode(record.input_items)
    if query.order == "desc":
        items.reverse()
    rest = _after(items, query.after)
    page = rest[: query.limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return _bare(envelope.encode({"object": "list", "data": page, **ends, "has_more": len(rest) > query.limit}))


async def delete(services: Services, request: Request) -> Response:
    """Keep it no more: neither it nor what went before can be gone on from. One that is still to be finished has to be
    cancelled first."""
    record = await _find(services, request)
    account_id, response_id = request.path_params["account_id"], request.path_params["response_id"]
    if not background.is_over(await background.now(services, account_id, response_id, record)):
        raise invalid("a response that is not finished cannot be deleted: cancel it first")
    await services.responses.forget(account_id, response_id)
    return _bare(envelope.encode({"id": response_id, "object": "response", "deleted": True}))


class _Events(Response):
    """The events of a response as it comes to have them. It holds a place as a call does."""

    def __init__(self, services: Services, request: Request, after: int) -> None:
        super().__init__()
        self._services = services
        self._request = request
        self._after = after
        self.raw_headers = []

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        exchange: Exchange = scope["hearth.exchange"]
        exchange.has_started = False
        ids = self._request.path_params
        with self._services.admission.enter(principal_of(self._request).account_id) as place:
            await background.stream(self._services, exchange, place, ids["response_id"], ids["account_id"], self._after)


async def _find(services: Services, request: Request) -> Record:
    """Raises Refusal for what is not kept, or not this account's; StoreUnavailable."""
    account_id, response_id = request.path_params["account_id"], request.path_params["response_id"]
    found = await services.responses.find(account_id, response_id) if _RESPONSE_ID.fullmatch(response_id) else None
    if found is None:
        is_kept = not principal_of(request).residency.is_zero_retention
        raise Refusal(Reason.RESPONSE_UNKNOWN, "" if is_kept else ": nothing of this account's calls is kept")
    return found


def _after(items: list[dict[str, Any]], item_id: str) -> list[dict[str, Any]]:
    """Those behind the item with this id; all where none is named, and none where it is not there."""
    if not item_id:
        return items
    ids = [item["id"] for item in items]
    return items[ids.index(item_id) + 1 :] if item_id in ids else []


def _bare(body: bytes) -> Response:
    return Response(body, media_type="application/json")
