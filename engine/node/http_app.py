"""The node's HTTP interface, for people with curl and for health checks.

    POST /execute   an Execute as JSON (call_id, namespace, revision, … are optional) -> its events, one JSON line each
    POST /load      {"model": …} -> 200 once the model is ready
    POST /unload    {"model": …, "waits": false} -> 200 once it is unloaded; 409 if calls use it
    GET  /status    NodeStatus
    GET  /metrics   Prometheus text
    GET  /healthz   200 while the process runs
    GET  /readyz    200 while the first wanted model can take calls and the node is not draining, else 503

The POST routes require a service token (`Authorization: Bearer TOKEN`), which can be used once. Plain ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from engine.protocol.events import Event, Failed, Finished
from engine.protocol.status import NodeStatus
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.wire import Execute, to_json_line
from engine.serving.asgi import (
    BodyTooLarge,
    ClientDisconnected,
    Message,
    Receive,
    Send,
    bearer_token,
    read_body,
    send_response,
    wait_for_disconnect,
)
from engine.serving.calls import Calls
from engine.serving.model_store import ModelStore, ModelUnavailable
from engine.serving.replica_metrics import export_replicas
from engine.serving.replicas import Replicas
from engine.tasks.work import Refused
from storage.errors import StoreError
from telemetry import metrics

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity

MAX_BODY_BYTES = 10 * 1024 * 1024
DEFAULT_DEADLINE_S = 120.0
_STATUS = {"model_unavailable": 404, "out_of_capacity": 409}


class ExecuteBody(Struct, frozen=True, kw_only=True):
    """An Execute as a person writes it.

    An empty `revision` means the current one. `namespace` has 64 hexadecimal digits; if empty, the call gets its own
    namespace and shares no cached blocks.
    """

    model: str
    task: TaskInput
    revision: str = ""
    namespace: str = ""
    tenant: int = 0
    deadline_s: float = DEFAULT_DEADLINE_S
    request_id: str = ""


class ReplicaBody(Struct, frozen=True, kw_only=True):
    """A model to load or unload. With `waits`, unloading waits for running calls."""

    model: str
    waits: bool = False


class HttpApp:
    """The ASGI application."""

    def __init__(
        self,
        calls: Calls,
        replicas: Replicas,
        store: ModelStore,
        identity: ServiceIdentity,
        status: Callable[[], NodeStatus],
        is_ready: Callable[[], bool],
    ) -> None:
        self._calls = calls
        self._replicas = replicas
        self._store = store
        self._identity = identity
        self._status = status
        self._is_ready = is_ready

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "served without lifespan and websockets"
        route = (scope["method"], scope["path"])
        if route == ("POST", "/execute"):
            await self._execute(scope, receive, send)
        elif route in (("POST", "/load"), ("POST", "/unload")):
            await self._change_replica(scope, receive, send)
        elif route == ("GET", "/status"):
            await send_response(send, 200, msgspec.json.encode(self._status()) + b"\n")
        elif route == ("GET", "/metrics"):
            export_replicas(self._status().replicas)
            await send_response(send, 200, metrics.render(), b"text/plain; version=0.0.4; charset=utf-8")
        elif route == ("GET", "/healthz"):
            await send_response(send, 200, b'{"status":"ok"}\n')
        elif route == ("GET", "/readyz"):
            is_ready = self._is_ready()
            body = b'{"ready":%s}\n' % (b"true" if is_ready else b"false")
            await send_response(send, 200 if is_ready else 503, body)
        else:
            await _send_error(send, 404, "no such route")

    async def _execute(self, scope: Message, receive: Receive, send: Send) -> None:
        body = await self._authorized_body(scope, receive, send)
        if body is None:
            return
        try:
            execute = await self._parse(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            await _send_error(send, 400, str(error))
        except (ModelUnavailable, StoreError) as error:
            await _send_error(send, 404, str(error))
        else:
            await self._stream(execute, receive, send)

    async def _change_replica(self, scope: Message, receive: Receive, send: Send) -> None:
        """Load or unload a model. The work continues if the client disconnects."""
        body = await self._authorized_body(scope, receive, send)
        if body is None:
            return
        try:
            parsed = msgspec.json.decode(body, type=ReplicaBody)
            if scope["path"] == "/load":
                await self._replicas.load_current(parsed.model)
            else:
                await self._replicas.unload(parsed.model, waits=parsed.waits)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            await _send_error(send, 400, str(error))
        except Refused as refused:
            await _send_error(send, _STATUS.get(refused.failure.reason, 500), refused.failure.message)
        else:
            await send_response(send, 200, msgspec.json.encode({"model": parsed.model}) + b"\n")

    async def _authorized_body(self, scope: Message, receive: Receive, send: Send) -> bytes | None:
        """Return the body of a request with a valid service token; send an error and return None for others."""
        if not self._is_authorized(scope):
            await _send_error(send, 401, "a service token is required as a bearer token")
            return None
        try:
            return await read_body(scope, receive, MAX_BODY_BYTES)
        except BodyTooLarge:
            await _send_error(send, 413, f"the body must have at most {MAX_BODY_BYTES} bytes")
        except ClientDisconnected:
            pass
        return None

    def _is_authorized(self, scope: Message) -> bool:
        """Return True if the request has a valid service token that has not been used before."""
        token = bearer_token(scope)
        return (
            token is not None
            and self._identity.verify_once(token.decode("latin-1"), {"operator", "gateway"}) is not None
        )

    async def _parse(self, body: bytes) -> Execute:
        parsed = msgspec.json.decode(body, type=ExecuteBody)
        namespace = bytes.fromhex(parsed.namespace) if parsed.namespace else os.urandom(32)
        if len(namespace) != 32:
            raise ValueError("namespace must have 64 hexadecimal digits")
        return Execute(
            call_id=0,
            request_id=parsed.request_id or str(uuid.uuid4()),
            model=parsed.model,
            revision=parsed.revision or await self._store.current_revision(parsed.model),
            namespace=namespace,
            tenant=parsed.tenant,
            task=parsed.task,
            deadline_s=parsed.deadline_s,
        )

    async def _stream(self, execute: Execute, receive: Receive, send: Send) -> None:
        events: asyncio.Queue[Event] = asyncio.Queue()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/x-ndjson")]}
        )
        call = self._calls.begin(execute, events.put_nowait)
        disconnect = asyncio.create_task(wait_for_disconnect(receive))
        if call is not None:
            disconnect.add_done_callback(lambda _: call.abandon())
        try:
            is_over = False
            while not is_over and not disconnect.done():
                batch = await _next_events(events, disconnect)
                is_over = any(isinstance(event, Finished | Failed) for event in batch)
                body = b"".join(to_json_line(event) for event in batch)
                await send({"type": "http.response.body", "body": body, "more_body": not is_over})
        finally:
            disconnect.cancel()
            if call is not None:
                call.abandon()


async def _next_events(events: asyncio.Queue[Event], disconnect: asyncio.Task[None]) -> list[Event]:
    """Wait for an event and return all pending ones; empty if the client disconnects first."""
    getting = asyncio.create_task(events.get())
    await asyncio.wait({getting, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    if not getting.done():
        getting.cancel()
        return []
    pending = [getting.result()]
    with contextlib.suppress(asyncio.QueueEmpty):
        while True:
            pending.append(events.get_nowait())
    return pending


async def _send_error(send: Send, status: int, message: str) -> None:
    await send_response(send, status, msgspec.json.encode({"error": message}) + b"\n")
