"""The node's plain HTTP door, for people with curl and for health checks: the wire's messages as JSON lines.

    POST /execute   a JSON Execute (call_id, namespace, revision, … may be left out) -> its events, one line each
    GET  /status    NodeStatus       GET /metrics   Prometheus text
    GET  /healthz   the process lives        GET /readyz   the first model can take calls, and the node stays

/execute requires a service token (`Authorization: Bearer TOKEN`), which can be used once. Plain ASGI; served by
`server.py`.
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
    ClientLeft,
    Message,
    Receive,
    Send,
    answer,
    bearer,
    read_body,
    wait_for_disconnect,
)
from engine.serving.calls import Calls
from engine.serving.model_store import ModelStore, ModelUnavailable
from storage.errors import StoreError
from telemetry import metrics

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity

MAX_BODY_BYTES = 10 * 1024 * 1024
DEFAULT_DEADLINE_S = 120.0


class ExecuteBody(Struct, frozen=True, kw_only=True):
    """An Execute as a person writes it. `revision` empty is the current one; `namespace` (64 hexadecimal digits) empty
    is one of this call's own, so that nothing is shared."""

    model: str
    task: TaskInput
    revision: str = ""
    namespace: str = ""
    tenant: int = 0
    deadline_s: float = DEFAULT_DEADLINE_S
    request_id: str = ""


class HttpDoor:
    """The ASGI application."""

    def __init__(
        self,
        calls: Calls,
        store: ModelStore,
        identity: ServiceIdentity,
        status: Callable[[], NodeStatus],
        is_ready: Callable[[], bool],
    ) -> None:
        self._calls = calls
        self._store = store
        self._status = status
        self._is_ready = is_ready
        self._identity = identity

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "served without lifespan and websockets"
        route = (scope["method"], scope["path"])
        if route == ("POST", "/execute"):
            await self._execute(scope, receive, send)
        elif route == ("GET", "/status"):
            await answer(send, 200, msgspec.json.encode(self._status()) + b"\n")
        elif route == ("GET", "/metrics"):
            export_replicas(self._status())
            await answer(send, 200, metrics.render(), b"text/plain; version=0.0.4; charset=utf-8")
        elif route == ("GET", "/healthz"):
            await answer(send, 200, b'{"status":"ok"}\n')
        elif route == ("GET", "/readyz"):
            is_ready = self._is_ready()
            await answer(send, 200 if is_ready else 503, b'{"ready":%s}\n' % (b"true" if is_ready else b"false"))
        else:
            await _refuse(send, 404, "no such route")

    async def _execute(self, scope: Message, receive: Receive, send: Send) -> None:
        if not self._may_execute(scope):
            return await _refuse(send, 401, "a service token is required as a bearer token")
        try:
            body = await read_body(scope, receive, MAX_BODY_BYTES)
        except BodyTooLarge:
            return await _refuse(send, 413, f"a body has at most {MAX_BODY_BYTES} bytes")
        except ClientLeft:
            return None
        try:
            execute = await self._read(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            return await _refuse(send, 400, str(error))
        except (ModelUnavailable, StoreError) as error:
            return await _refuse(send, 404, str(error))
        await self._stream(execute, receive, send)
        return None

    def _may_execute(self, scope: Message) -> bool:
        """Return True if the request has a valid service token that has not been used before."""
        token = bearer(scope)
        return (
            token is not None
            and self._identity.verify_once(token.decode("latin-1"), {"operator", "gateway"}) is not None
        )

    async def _read(self, body: bytes) -> Execute:
        asked = msgspec.json.decode(body, type=ExecuteBody)
        namespace = bytes.fromhex(asked.namespace) if asked.namespace else os.urandom(32)
        if len(namespace) != 32:
            raise ValueError("a namespace has 64 hexadecimal digits")
        return Execute(
            call_id=0,
            request_id=asked.request_id or str(uuid.uuid4()),
            model=asked.model,
            revision=asked.revision or await self._store.current_revision(asked.model),
            namespace=namespace,
            tenant=asked.tenant,
            task=asked.task,
            deadline_s=asked.deadline_s,
        )

    async def _stream(self, execute: Execute, receive: Receive, send: Send) -> None:
        events: asyncio.Queue[Event] = asyncio.Queue()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/x-ndjson")]}
        )
        call = self._calls.begin(execute, events.put_nowait)
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        if call is not None:
            leaving.add_done_callback(lambda _: call.abandon())
        try:
            is_over = False
            while not is_over and not leaving.done():
                lines = await _take(events, leaving)
                is_over = any(isinstance(event, Finished | Failed) for event in lines)
                body = b"".join(to_json_line(event) for event in lines)
                await send({"type": "http.response.body", "body": body, "more_body": not is_over})
        finally:
            leaving.cancel()
            if call is not None:
                call.abandon()


async def _take(events: asyncio.Queue[Event], leaving: asyncio.Task[None]) -> list[Event]:
    """What was said since the last look, at least one event unless the client leaves."""
    getting = asyncio.create_task(events.get())
    await asyncio.wait({getting, leaving}, return_when=asyncio.FIRST_COMPLETED)
    if not getting.done():
        getting.cancel()
        return []
    taken = [getting.result()]
    with contextlib.suppress(asyncio.QueueEmpty):
        while True:
            taken.append(events.get_nowait())
    return taken


async def _refuse(send: Send, status: int, message: str) -> None:
    await answer(send, status, msgspec.json.encode({"error": message}) + b"\n")


def export_replicas(status: NodeStatus) -> None:
    """Set the gauges of what is loaded here now."""
    gauges = (
        metrics.REPLICA_RUNNING,
        metrics.REPLICA_WAITING,
        metrics.REPLICA_BLOCKS,
        metrics.REPLICA_COMPUTED_TOKENS,
        metrics.REPLICA_STEPS,
        metrics.REPLICA_BUSY,
        metrics.REPLICA_RANKS,
        metrics.REPLICA_PREEMPTIONS,
    )
    for gauge in gauges:
        gauge.clear()
    for replica in status.replicas:
        metrics.REPLICA_RUNNING.labels(replica.model).set(replica.num_running)
        metrics.REPLICA_WAITING.labels(replica.model).set(replica.num_waiting)
        metrics.REPLICA_COMPUTED_TOKENS.labels(replica.model).set(replica.num_computed_tokens)
        metrics.REPLICA_STEPS.labels(replica.model).set(replica.num_steps)
        metrics.REPLICA_BUSY.labels(replica.model).set(replica.busy_us / 1e6)
        metrics.REPLICA_RANKS.labels(replica.model).set(replica.num_ranks)
        metrics.REPLICA_PREEMPTIONS.labels(replica.model).set(replica.num_preemptions)
        held = replica.num_blocks - replica.num_free_blocks - replica.num_cached_blocks
        states = {"free": replica.num_free_blocks, "cached": replica.num_cached_blocks, "held": held}
        for state, count in states.items():
            metrics.REPLICA_BLOCKS.labels(replica.model, state).set(count)
