"""The node's HTTP interface, for people with curl and for health checks.

    POST /execute   an Execute as JSON (call_id, namespace, revision, … are optional) -> its events, one JSON line each
    POST /load      {"model": …} -> 200 once the model is ready
    POST /unload    {"model": …, "waits": false} -> 200 once it is unloaded; 409 if calls use it or it is pinned
    POST /pin       {"model": …} -> 200 once the model is ready; it is not evicted until POST /unpin
    GET  /files/KEY a range of a file in the disk cache, for other nodes of the PoP (`peer_files.py`)
    GET  /status    NodeStatus
    GET  /metrics   Prometheus text
    GET  /healthz   200 while the process runs
    GET  /readyz    200 while the first wanted model can take calls, no device is lost and the node is not draining; 503
                    otherwise, with the reason if a device is lost

The POST routes require a service token (`Authorization: Bearer TOKEN`) of a gateway or operator, and /files one of a
node. A token can be used once. Plain ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from engine.node.served_files import ServedFiles
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
    from service_identity.service_tokens import Kind

MAX_BODY_BYTES = 10 * 1024 * 1024
DEFAULT_DEADLINE_S = 120.0
_REPLICA_ACTIONS = ("load", "unload", "pin", "unpin")
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
    """A model to load, unload, pin or unpin. With `waits`, unloading waits for running calls."""

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
        files: ServedFiles | None = None,
    ) -> None:
        self._files = files
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
        elif route in {("POST", f"/{action}") for action in _REPLICA_ACTIONS}:
            await self._change_replica(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"].startswith("/files/") and self._files is not None:
            await self._send_file(self._files, scope, send)
        elif route == ("GET", "/status"):
            await send_response(send, 200, msgspec.json.encode(self._status()) + b"\n")
        elif route == ("GET", "/metrics"):
            export_replicas(self._status().replicas)
            await send_response(send, 200, metrics.render(), b"text/plain; version=0.0.4; charset=utf-8")
        elif route == ("GET", "/healthz"):
            await send_response(send, 200, b'{"status":"ok"}\n')
        elif route == ("GET", "/readyz"):
            is_ready = self._is_ready()
            found: dict[str, object] = {"ready": is_ready}
            if self._replicas.lost_device:
                found["reason"] = self._replicas.lost_device
            await send_response(send, 200 if is_ready else 503, msgspec.json.encode(found) + b"\n")
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
        """Load, unload, pin or unpin a model. The work continues if the client disconnects."""
        body = await self._authorized_body(scope, receive, send)
        if body is None:
            return
        try:
            parsed = msgspec.json.decode(body, type=ReplicaBody)
            match scope["path"]:
                case "/load":
                    await self._replicas.load_current(parsed.model)
                case "/pin":
                    await self._replicas.pin(parsed.model)
                case "/unpin":
                    self._replicas.unpin(parsed.model)
                case _:
                    await self._replicas.unload(parsed.model, waits=parsed.waits)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            await _send_error(send, 400, str(error))
        except Refused as refused:
            await _send_error(send, _STATUS.get(refused.failure.reason, 500), refused.failure.message)
        else:
            await send_response(send, 200, msgspec.json.encode({"model": parsed.model}) + b"\n")

    async def _send_file(self, files: ServedFiles, scope: Message, send: Send) -> None:
        if self._is_authorized(scope, {"node"}):
            await files.serve(scope, send)
        else:
            await _send_error(send, 401, "a service token of a node is required as a bearer token")

    async def _authorized_body(self, scope: Message, receive: Receive, send: Send) -> bytes | None:
        """Return the body of a request with a valid service token; send an error and return None for others."""
        if not self._is_authorized(scope, {"operator", "gateway"}):
            await _send_error(send, 401, "a service token is required as a bearer token")
            return None
        try:
            return await read_body(scope, receive, MAX_BODY_BYTES)
        except BodyTooLarge:
            await _send_error(send, 413, f"the body must have at most {MAX_BODY_BYTES} bytes")
        except ClientDisconnected:
            pass
        return None

    def _is_authorized(self, scope: Message, kinds: Collection[Kind]) -> bool:
        """Return True if the request has a valid service token of one of `kinds` that has not been used before."""
        token = bearer_token(scope)
        return token is not None and self._identity.verify_once(token.decode("latin-1"), kinds) is not None

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
