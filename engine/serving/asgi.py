"""Helpers for plain ASGI: read a header, a bearer token or a bounded body; wait for a disconnect; send a response."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]


class BodyTooLarge(Exception):
    """The request body, or its announced length, exceeds the limit."""


class ClientDisconnected(Exception):
    """The client closed its connection before the response was complete."""


def find_header(scope: Message, name: bytes) -> bytes | None:
    """Return the first value of a header, given its lower-case name."""
    return next((value for key, value in scope["headers"] if key == name), None)


def bearer_token(scope: Message) -> bytes | None:
    """Return the bearer token of a request that has exactly one `Authorization` header, or None."""
    offered = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = offered[0].partition(b" ") if len(offered) == 1 else (b"", b"", b"")
    return token if scheme.lower() == b"bearer" else None


def has_bearer_token(scope: Message, secret: str) -> bool:
    """Return True if the request's bearer token is `secret`. Takes the same time for every wrong token."""
    token = bearer_token(scope)
    return token is not None and hmac.compare_digest(_digest(token), _digest(secret.encode()))


def _digest(text: bytes) -> bytes:
    """Return a value of constant length, so that the comparison does not reveal the secret's length."""
    return hashlib.sha256(text).digest()


async def read_body(scope: Message, receive: Receive, max_bytes: int) -> bytes:
    """Return the whole request body. Raises BodyTooLarge, ClientDisconnected."""
    announced = find_header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > max_bytes:
        raise BodyTooLarge
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return bytes(body)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client disconnects. Call it after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_response(
    send: Send, status: int, body: bytes, content_type: bytes = b"application/json", headers: Headers = ()
) -> None:
    """Send a complete response."""
    length = (b"content-length", str(len(body)).encode())
    all_headers = [(b"content-type", content_type), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})
