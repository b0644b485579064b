"""A WebSocket client for tests, over a plain socket."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

TIMEOUT_S = 60


class Rejected(Exception):
    """The server refused the WebSocket with an HTTP response."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(f"{status} {body[:300]!r}")
        self.status, self.body, self.headers = status, body, headers

    @property
    def errors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.body)["errors"]
        return found


class WebSocketClient:
    """An open WebSocket. `closed` is (code, reason) once the server has closed it."""

    def __init__(
        self, url: str, token: str = "", query: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> None:
        """Raises Rejected."""
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []
        self.closed: tuple[int, str] | None = None
        self.headers: dict[str, str] = {}
        own = {"authorization": f"Bearer {token}"} if token else {}
        extra = [(name.encode(), value.encode()) for name, value in (own | (headers or {})).items()]
        target = parts.path + (f"?{urlencode(query)}" if query else "")
        self._send(Request(host=parts.netloc, target=target, extra_headers=extra))
        event = self._next_event()
        if isinstance(event, RejectConnection):
            rejected = Rejected(event.status_code, self._rejection(event), _texts(event.headers))
            self.socket.close()
            raise rejected
        assert isinstance(event, AcceptConnection)
        self.headers = _texts(event.extra_headers)

    def _rejection(self, event: RejectConnection) -> bytes:
        body = b""
        while event.has_body:
            data = self._next_event()
            assert isinstance(data, RejectData)
            body += data.data
            if data.body_finished:
                break
        return body

    def __enter__(self) -> WebSocketClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def send(self, message: bytes | dict[str, Any] | str) -> None:
        """Send audio, a command or text."""
        if isinstance(message, bytes):
            self._send(BytesMessage(message))
        else:
            self._send(TextMessage(message if isinstance(message, str) else json.dumps(message)))

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ping(self, payload: bytes) -> bytes:
        """Send a ping and return the payload of the pong."""
        self._send(Ping(payload))
        while not isinstance(event := self._next_event(), Pong):
            continue
        return bytes(event.payload)

    def close(self, code: int = 1000) -> None:
        self._send(CloseConnection(code))
        while self.closed is None:
            self.receive()

    def receive(self) -> dict[str, Any] | bytes | None:
        """Return the next event as an object, or audio as bytes; None once the server has closed the WebSocket."""
        text, data = "", b""
        while True:
            event = self._next_event()
            if isinstance(event, TextMessage):
                text += event.data
                if event.message_finished:
                    found: dict[str, Any] = json.loads(text)
                    return found
            elif isinstance(event, BytesMessage):
                data += bytes(event.data)
                if event.message_finished:
                    return data
            elif isinstance(event, CloseConnection):
                self.closed = (int(event.code), event.reason or "")
                return None

    def receive_until(self, kind: str) -> list[dict[str, Any]]:
        """Return the events up to the first of this type. Fails if the server closes the WebSocket before."""
        found: list[dict[str, Any]] = []
        while True:
            event = self.receive()
            assert event is not None, f"closed with {self.closed} after {found}"
            if isinstance(event, bytes):
                continue
            found.append(event)
            if event["type"] == kind:
                return found

    def receive_all(self) -> list[dict[str, Any]]:
        """Return all further events until the server closes the WebSocket; audio is left out."""
        found: list[dict[str, Any]] = []
        while (event := self.receive()) is not None:
            if isinstance(event, dict):
                found.append(event)
        return found

    def _send(self, event: Event) -> None:
        self.socket.sendall(self._connection.send(event))

    def _next_event(self) -> Event:
        while not self._events:
            data = self.socket.recv(65536)
            self._connection.receive_data(data or None)
            self._events += self._connection.events()
            for event in self._events:
                if isinstance(event, CloseConnection) and data:
                    with contextlib.suppress(Exception):
                        self._send(event.response())
        return self._events.pop(0)


def _texts(headers: Any) -> dict[str, str]:
    return {bytes(name).decode().lower(): bytes(value).decode() for name, value in headers}


def speak(client: WebSocketClient, audio: bytes, *, sample_rate: int = 16_000, frame_ms: int = 40) -> float:
    """Send audio at the speed at which it would be recorded, and return the time of the last frame."""
    size = sample_rate * 2 * frame_ms // 1000
    started_s = time.monotonic()
    for number, position in enumerate(range(0, len(audio), size), 1):
        client.send(audio[position : position + size])
        time.sleep(max(0.0, started_s + number * frame_ms / 1000 - time.monotonic()))
    return time.monotonic()
