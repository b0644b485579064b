"""Routes of the standalone server: OpenAI's, and those that tools for vLLM expect. Plain ASGI.

    POST /v1/chat/completions   /v1/completions   /v1/embeddings
    GET  /v1/models   /v1/models/{id}             POST /tokenize   /detokenize
    GET  /health   /metrics   /version

All except the last line require the API key if one is set. Requests wait while the model loads. `server.py` serves this
application; `engine/protocol` renders responses.
"""

from __future__ import annotations

import logging
import re
import time
import urllib.parse
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.protocol.chat_completions import includes_usage
from engine.protocol.completions import CompletionRenderer, read_completion_request
from engine.protocol.embeddings import EmbeddingsRenderer, read_embeddings_request
from engine.protocol.fields import BadInput, boolean
from engine.protocol.rendering import Renderer
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.serving.asgi import (
    BodyTooLarge,
    ClientDisconnected,
    Headers,
    Message,
    Receive,
    Send,
    find_header,
    has_bearer_token,
    read_body,
    send_response,
)
from engine.standalone import bodies
from engine.standalone.choices import Choices, tell_stream, tell_whole
from engine.standalone.errors import HttpError, of_failure, unknown_model
from engine.standalone.served_model import ServedModel
from engine.tasks.work import Refused
from telemetry import metrics

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024

_OPEN_TO_ALL = {"/health", "/metrics", "/version"}
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


@dataclass
class Request:
    """One HTTP request."""

    scope: Message
    receive: Receive
    send: Send
    id: str
    path: str
    status: int = 0

    @property
    def headers(self) -> Headers:
        return ((b"x-request-id", self.id.encode()),)

    async def respond(self, status: int, body: Any, headers: Headers = ()) -> None:
        encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
        await send_response(self.send, status, encoded, headers=(*self.headers, *headers))


Handler = Callable[[Request], Awaitable[None]]


class OpenAIDoor:
    """The ASGI application. An empty `api_key` disables authentication."""

    def __init__(self, model: ServedModel, *, api_key: str, version: str) -> None:
        self._model = model
        self._api_key = api_key
        self._version = version
        self._routes: dict[str, tuple[str, Handler]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completions),
            "/v1/embeddings": ("POST", self._embeddings),
            "/v1/models": ("GET", self._models),
            "/v1/models/{id}": ("GET", self._one_model),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/version": ("GET", self._say_version),
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "served without lifespan and websockets"
        offered = find_header(scope, b"x-request-id")
        request_id = offered.decode() if offered and _REQUEST_ID.fullmatch(offered) else uuid.uuid4().hex
        has_started = False

        async def noting(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started, request.status = True, message["status"]
            await send(message)

        request = Request(scope, receive, noting, request_id, scope["path"])
        route = "other"
        try:
            route, handler = self._find(request)
            self._authenticate(request)
            await handler(request)
        except ClientDisconnected:
            request.status = 499
        except Exception as error:
            refusal = _as_http_error(error, request)
            if has_started:
                raise  # the server drops the connection, so that the client does not accept a partial response
            await request.respond(refusal.status, refusal.body(), refusal.headers())
        finally:
            metrics.REQUESTS.labels(route, str(request.status)).inc()

    def _find(self, request: Request) -> tuple[str, Handler]:
        """Return the route's name in metrics and its handler. Raises HttpError."""
        path, method = request.path, request.scope["method"]
        if path.startswith("/v1/models/"):
            path = "/v1/models/{id}"
        if path not in self._routes:
            raise HttpError(404, "There is no such route.", code="not_found")
        wanted, handler = self._routes[path]
        if method != wanted and not (method == "HEAD" and wanted == "GET"):
            raise HttpError(405, f"This route answers {wanted}.", allow=wanted)
        return path, handler

    def _authenticate(self, request: Request) -> None:
        if self._api_key and request.path not in _OPEN_TO_ALL and not has_bearer_token(request.scope, self._api_key):
            raise HttpError(401, "The API key is missing or wrong.", code="invalid_api_key")

    # ── inference ──

    async def _chat(self, request: Request) -> None:
        body = await self._read(request)
        generator = await self._model.generator()
        chat = bodies.chat(self._model.filled(body), context_window=generator.info.max_model_len)
        renderer = chat.renderer(f"chatcmpl-{request.id}", int(time.time()), self._shown_name(body))
        await self._tell(request, body, [chat.task], renderer)

    async def _completions(self, request: Request) -> None:
        body = await self._read(request)
        generator = await self._model.generator()
        info = generator.info
        completion = read_completion_request(
            self._model.filled(body), context_window=info.max_model_len, vocab_size=info.vocab_size
        )
        renderer = CompletionRenderer(
            f"cmpl-{request.id}",
            int(time.time()),
            self._shown_name(body),
            completion,
            has_usage_chunk=includes_usage(body),
        )
        await self._tell(request, body, completion.tasks(), renderer)

    async def _tell(
        self, request: Request, body: dict[str, Any], tasks: Sequence[TaskInput], renderer: Renderer
    ) -> None:
        is_stream = boolean(body, "stream", False)
        choices = Choices(self._model.name, request.receive)
        try:
            choices.begin(self._model.calls, tasks, self._model.execute(request.id, tasks[0]))
            if is_stream:
                await tell_stream(choices, renderer, request.send, request.headers)
            else:
                await tell_whole(choices, renderer, request.send, request.headers)
        finally:
            choices.close()

    async def _embeddings(self, request: Request) -> None:
        body = await self._read(request)
        await self._model.load(TextEmbeddings.slug)
        if body.get("dimensions") is not None:
            raise BadInput("'/dimensions' is not supported: vectors are as long as the model makes them")
        task, encoding = read_embeddings_request(body)
        renderer = EmbeddingsRenderer(self._shown_name(body), encoding)
        await self._tell(request, {}, [task], renderer)

    # ── text and tokens ──

    async def _tokenize(self, request: Request) -> None:
        body = await self._read(request)
        generator = await self._model.generator()
        has_strings = boolean(body, "return_token_strs", False)
        token_ids = await bodies.tokenized(body, generator)
        shown = [generator.tokenizer.token_text(token_id) for token_id in token_ids] if has_strings else None
        max_model_len = generator.info.max_model_len
        found = {"count": len(token_ids), "max_model_len": max_model_len, "tokens": token_ids, "token_strs": shown}
        await request.respond(200, found)

    async def _detokenize(self, request: Request) -> None:
        body = await self._read(request)
        generator = await self._model.generator()
        token_ids = bodies.token_ids(body.get("tokens"), generator.info.vocab_size)
        await request.respond(200, {"prompt": await bodies.decoded(token_ids, generator)})

    # ── models and status ──

    async def _models(self, request: Request) -> None:
        await request.respond(200, {"object": "list", "data": await self._model.describe()})

    async def _one_model(self, request: Request) -> None:
        name = urllib.parse.unquote(request.scope["raw_path"].decode("latin-1").removeprefix("/v1/models/"))
        for shown in await self._model.describe():
            if shown["id"] == name:
                return await request.respond(200, shown)
        raise unknown_model(name)

    async def _health(self, request: Request) -> None:
        if not self._model.is_ready:
            raise HttpError(503, "The model cannot take requests now.", kind="server_error", code="model_unavailable")
        await request.respond(200, {})

    async def _metrics(self, request: Request) -> None:
        self._model.export()
        await send_response(request.send, 200, metrics.render(), _METRICS_TYPE, request.headers)

    async def _say_version(self, request: Request) -> None:
        await request.respond(200, {"version": self._version})

    # ── bodies ──

    async def _read(self, request: Request) -> dict[str, Any]:
        """Read the body of a request for this model. Raises HttpError, BodyTooLarge, ClientDisconnected."""
        raw = await read_body(request.scope, request.receive, MAX_BODY_BYTES)
        try:
            body = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(400, "The body is not valid JSON.", code="invalid_json") from error
        if not isinstance(body, dict):
            raise HttpError(400, "The body must be a JSON object.", code="invalid_json")
        named = body.get("model")
        if named is not None and not isinstance(named, str):
            raise BadInput("Type mismatch of '/model', expected 'string'")
        if named is not None and named not in self._model.names:
            raise unknown_model(named[:256])
        return body

    def _shown_name(self, body: dict[str, Any]) -> str:
        return body.get("model") or self._model.name


def _as_http_error(error: Exception, request: Request) -> HttpError:
    if isinstance(error, HttpError):
        return error
    if isinstance(error, BadInput):
        return HttpError(400, str(error))
    if isinstance(error, Refused):
        return of_failure(error.failure)
    if isinstance(error, BodyTooLarge):
        return HttpError(413, f"The body is larger than {MAX_BODY_BYTES} bytes.", code="body_too_large")
    metrics.INTERNAL_ERRORS.inc()
    logger.exception("a request could not be answered", extra={"request_id": request.id})
    return HttpError(500, "The server could not do this; its log says why.", kind="server_error")
