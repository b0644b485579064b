"""Results of batches: the item of each request, and the body of all of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway import envelope
from gateway.errors import Refusal

# Start of the body without and with an envelope; the ends are `bare_tail` and `tail`.
BARE_HEAD = b'{"responses":['
HEAD = b'{"result":' + BARE_HEAD


def successful_item(number: int, reference: str | None, body: bytes) -> bytes:
    """Return the item of a request whose response is `body`."""
    return envelope.encode(_item(number, reference, result=msgspec.Raw(body), success=True))


def failed_item(number: int, reference: str | None, refusal: Refusal) -> bytes:
    """Return the item of a request that was refused."""
    errors = [envelope.error_entry(refusal)]
    return envelope.encode(_item(number, reference, result={}, success=False, errors=errors))


def _item(number: int, reference: str | None, **fields: Any) -> dict[str, Any]:
    item = {"id": number, **fields}
    return item if reference is None else item | {"external_reference": reference}


def bare_tail(prompt_tokens: int, completion_tokens: int) -> bytes:
    """Return the end of the body, after the items."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    return b'],"usage":' + envelope.encode(usage) + b"}"


def tail(prompt_tokens: int, completion_tokens: int) -> bytes:
    """Return the end of the body in an envelope."""
    return bare_tail(prompt_tokens, completion_tokens) + b',"success":true,"errors":[],"messages":[]}'


def whole(items: Iterable[bytes], prompt_tokens: int, completion_tokens: int) -> bytes:
    """Return the whole body, in an envelope."""
    return HEAD + b",".join(items) + tail(prompt_tokens, completion_tokens)
