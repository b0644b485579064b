"""How the answers of a batch look: each request's own, and all of them together. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from gateway import envelope
from gateway.errors import Refusal


class _Enveloped(Struct):
    result: msgspec.Raw


_decode = msgspec.json.Decoder(_Enveloped).decode


def answered(number: int, reference: str | None, body: bytes) -> bytes:
    """A request's answer, from the enveloped one of the call that it is."""
    return envelope.encode(_item(number, reference, result=_decode(body).result, success=True))


def refused(number: int, reference: str | None, refusal: Refusal) -> bytes:
    """What a request was refused for."""
    errors = [envelope.error_entry(refusal)]
    return envelope.encode(_item(number, reference, result={}, success=False, errors=errors))


def _item(number: int, reference: str | None, **fields: Any) -> dict[str, Any]:
    item = {"id": number, **fields}
    return item if reference is None else item | {"external_reference": reference}


BARE_HEAD = b'{"responses":['
HEAD = b'{"result":' + BARE_HEAD


def bare_tail(prompt_tokens: int, completion_tokens: int) -> bytes:
    """What follows all answers."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    return b'],"usage":' + envelope.encode(usage) + b"}"


def tail(prompt_tokens: int, completion_tokens: int) -> bytes:
    """The same, in an envelope."""
    return bare_tail(prompt_tokens, completion_tokens) + b',"success":true,"errors":[],"messages":[]}'


def whole(items: Iterable[bytes], prompt_tokens: int, completion_tokens: int) -> bytes:
    """A batch's whole body."""
    return HEAD + b",".join(items) + tail(prompt_tokens, completion_tokens)
