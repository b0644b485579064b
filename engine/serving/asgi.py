"""What an HTTP door hears and says over plain ASGI: a secret, a whole body, word of a client that left; one answer.

Knows no route.
"""

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
    """More was sent, or announced, than is read."""


class ClientLeft(Exception):
    """The client closed its connection: there is no one to answer."""


def header(scope: Message, name: bytes) -> bytes | None:
    """The first value of a header, by its lower-case name."""
    return next((value for key, value in scope["headers"] if key == name), None)


def bearer(scope: Message) -> bytes | None:
    """The bearer token of a request that has exactly one authorization."""
    offered = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = offered[0].partition(b" ") if len(offered) == 1 else (b"", b"", b"")
    return token if scheme.lower() == b"bearer" else None


def bears(scope: Message, secret: str) -> bool:
    """Whether the request's bearer token is `secret`."""
    token = bearer(scope)
    return token is not None and hmac.compare_digest(_digest(token), _digest(secret.encode()))


def _digest(text: bytes) -> bytes:
    """Of one length whatever the text, so that comparing tells nothing."""
    return hashlib.sha256(text).digest()


async def read_body(scope: Message, receive: Receive, max_bytes: int) -> bytes:
    """The whole body. Raises BodyTooLarge, ClientLeft."""
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > max_bytes:
        raise BodyTooLarge
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return bytes(body)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has left; to be called once the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer(
    send: Send, status: int, body: bytes, content_type: bytes = b"application/json", headers: Headers = ()
) -> None:
    """Send a whole answer."""
    length = (b"content-length", str(len(body)).encode())
    all_headers = [(b"content-type", content_type), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})
