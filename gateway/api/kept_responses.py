"""`A/ai/v1/responses/{id}`: a response told again, its input, and its end, while responses are kept.

What is kept, for how long and under which key is `threads.py`'s; whose it is says the account in the path.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import envelope
from gateway.api.objects import whole_number
from gateway.call import Record
from gateway.errors import Reason, Refusal
from gateway.services import Services

_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
_DEFAULT_LIMIT, _MAX_LIMIT = 20, 100


async def get(services: Services, request: Request) -> Response:
    """The response as it was answered."""
    return _bare((await _find(services, request)).response)


async def list_input(services: Services, request: Request) -> Response:
    """The items of its own input, the last first unless `order` is asc."""
    record = await _find(services, request)
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Refusal(Reason.QUERY_INVALID, "the query parameter 'order' must be asc or desc")
    limit = whole_number(request, "limit", _DEFAULT_LIMIT)
    if not 1 <= limit <= _MAX_LIMIT:
        raise Refusal(Reason.QUERY_INVALID, f"the query parameter 'limit' must be from 1 to {_MAX_LIMIT}")
    items: list[dict[str, Any]] = msgspec.json.decode(record.input_items)
    if order == "desc":
        items.reverse()
    rest = _after(items, request.query_params.get("after", ""))
    page = rest[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return _bare(envelope.encode({"object": "list", "data": page, **ends, "has_more": len(rest) > limit}))


async def delete(services: Services, request: Request) -> Response:
    """Keep it no more: neither it nor what went before can be gone on from."""
    await _find(services, request)
    account_id, response_id = request.path_params["account_id"], request.path_params["response_id"]
    await services.threads.forget(account_id, response_id)
    return _bare(envelope.encode({"id": response_id, "object": "response", "deleted": True}))


async def _find(services: Services, request: Request) -> Record:
    """Raises Refusal for what is not kept, or not this account's; StoreUnavailable."""
    account_id, response_id = request.path_params["account_id"], request.path_params["response_id"]
    found = await services.threads.find(account_id, response_id) if _RESPONSE_ID.fullmatch(response_id) else None
    if found is None:
        raise Refusal(Reason.OBJECT_UNKNOWN)
    return found


def _after(items: list[dict[str, Any]], item_id: str) -> list[dict[str, Any]]:
    """Those behind the item with this id; all where none is named, and none where it is not there."""
    if not item_id:
        return items
    ids = [item["id"] for item in items]
    return items[ids.index(item_id) + 1 :] if item_id in ids else []


def _bare(body: bytes) -> Response:
    return Response(body, media_type="application/json")
