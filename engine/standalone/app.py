"""Routes of the standalone server: OpenAI's, and those that tools for vLLM expect.

    POST /v1/chat/completions   /v1/completions   /v1/embeddings
    GET  /v1/models   /v1/models/{id}             POST /tokenize   /detokenize
    GET  /health   /metrics   /version

All except the last line require the API key if one is set. Requests wait while the model loads. `server.py` serves this
application; `engine/protocol` reads bodies and renders responses.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.protocol.chat_completions import ChatRenderer, includes_usage, read_chat_request
from engine.protocol.completions import CompletionRenderer, read_completion_request
from engine.protocol.embeddings import EmbeddingsRenderer, read_embeddings_request
from engine.protocol.fields import BadInput, boolean
from engine.protocol.rendering import Renderer
from engine.protocol.sampling import MAX_CHOICES
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tools import uses_legacy_functions
from engine.protocol.vllm_fields import reject_unsupported
from engine.serving.asgi import BodyTooLarge, ClientDisconnected, has_bearer_token, read_body
from engine.standalone import tokenization
from engine.standalone.errors import HttpError, of_failure, unknown_model
from engine.standalone.request_calls import EventStream, RequestCalls
from engine.standalone.served_model import ServedModel
from engine.tasks.work import Refused
from telemetry import metrics

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024

_PUBLIC_PATHS = ("/health", "/metrics", "/version")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DISCONNECTED = 499  # status in metrics of a request whose client disconnected


def create_app(model: ServedModel, *, api_key: str, version: str) -> Starlette:
    """Return the ASGI application. An empty `api_key` disables authentication."""
    endpoints = _Endpoints(model, version)
    routes = [
        Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
        Route("/v1/completions", endpoints.completions, methods=["POST"]),
        Route("/v1/embeddings", endpoints.embeddings, methods=["POST"]),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{id:path}", endpoints.one_model),
        Route("/tokenize", endpoints.tokenize, methods=["POST"]),
        Route("/detokenize", endpoints.detokenize, methods=["POST"]),
        Route("/health", endpoints.health),
        Route("/metrics", endpoints.metrics),
        Route("/version", endpoints.version),
    ]
    paths = {route.endpoint: route.path for route in routes}
    errors = (HttpError, HTTPException, BadInput, Refused, BodyTooLarge)
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_RequestMiddleware, api_key=api_key, paths=paths)],
        exception_handlers=dict.fromkeys(errors, _respond_to_error),
    )
    app.router.redirect_slashes = False
    return app


def read_chat(body: Mapping[str, Any], *, context_window: int) -> TextGeneration:
    """Read a chat completion body. Without `max_tokens` a response may use all of the context that its prompt leaves.

    Raises BadInput.
    """
    reject_unsupported(body, "chat")
    return read_chat_request(
        body, default_max_tokens=context_window, context_window=context_window, max_choices=MAX_CHOICES
    )


class _RequestMiddleware:
    """Check the API key, set the request id, count responses, and respond to unexpected errors. `paths` names the
    routes of endpoints in metrics."""

    def __init__(self, app: ASGIApp, api_key: str, paths: dict[Any, str]) -> None:
        self._app = app
        self._api_key = api_key
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        offered_id = Headers(scope=scope).get("x-request-id", "")
        request_id = offered_id if _REQUEST_ID.fullmatch(offered_id) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            if self._api_key and scope["path"] not in _PUBLIC_PATHS and not has_bearer_token(scope, self._api_key):
                error = HttpError(401, "The API key is missing or wrong.", code="invalid_api_key")
                await error.response()(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except ClientDisconnected:
            status = _DISCONNECTED
        except Exception:
            metrics.INTERNAL_ERRORS.inc()
            logger.exception("request failed", extra={"request_id": request_id})
            if status:
                raise  # the server drops the connection, so that the client does not accept a partial response
            error = HttpError(500, "The server failed to process the request; see its log.", kind="server_error")
            await error.response()(scope, receive, send_with_id)
        finally:
            metrics.REQUESTS.labels(self._paths.get(scope.get("endpoint"), "other"), str(status)).inc()


async def _respond_to_error(_request: Request, error: Exception) -> Response:
    """Return the error response for one of the exceptions that end a request."""
    if isinstance(error, Refused):
        error = of_failure(error.failure)
    elif isinstance(error, BodyTooLarge):
        error = HttpError(413, f"The body is larger than {MAX_BODY_BYTES} bytes.", code="body_too_large")
    elif isinstance(error, HTTPException) and error.status_code == 405:
        allow = (error.headers or {})["Allow"]
        error = HttpError(405, f"This route accepts {allow} only.", allow=allow)
    elif isinstance(error, HTTPException):
        error = HttpError(404, "There is no such route.", code="not_found")
    elif not isinstance(error, HttpError):
        error = HttpError(400, str(error))
    return error.response()


class _Endpoints:
    def __init__(self, model: ServedModel, version: str) -> None:
        self._model = model
        self._version = version

    # ── inference ──

    async def chat(self, request: Request) -> Response:
        body = await self._read(request)
        generator = await self._model.generator()
        task = read_chat(self._model.filled(body), context_window=generator.info.max_model_len)
        renderer = ChatRenderer(
            f"chatcmpl-{request.state.request_id}",
            int(time.time()),
            self._model_name(body),
            num_choices=task.num_choices,
            has_usage_chunk=includes_usage(body),
            has_logprobs=task.sampling.logprobs is not None,
            is_legacy=uses_legacy_functions(body),
        )
        return await self._respond(request, body, [task], renderer)

    async def completions(self, request: Request) -> Response:
        body = await self._read(request)
        info = (await self._model.generator()).info
        completion = read_completion_request(
            self._model.filled(body), context_window=info.max_model_len, vocab_size=info.vocab_size
        )
        renderer = CompletionRenderer(
            f"cmpl-{request.state.request_id}",
            int(time.time()),
            self._model_name(body),
            completion,
            has_usage_chunk=includes_usage(body),
        )
        return await self._respond(request, body, completion.tasks(), renderer)

    async def embeddings(self, request: Request) -> Response:
        body = await self._read(request)
        await self._model.load(TextEmbeddings.slug)
        if body.get("dimensions") is not None:
            raise BadInput("'/dimensions' is not supported: vectors are as long as the model makes them")
        task, encoding = read_embeddings_request(body)
        return await self._respond(request, {}, [task], EmbeddingsRenderer(self._model_name(body), encoding))

    async def _respond(
        self, request: Request, body: dict[str, Any], tasks: Sequence[TaskInput], renderer: Renderer
    ) -> Response:
        """Run the tasks and return the response: whole, or an open stream once its first event has arrived."""
        is_stream = boolean(body, "stream", False)
        calls = RequestCalls(self._model.name, request.receive)
        with contextlib.ExitStack() as stack:
            stack.callback(calls.close)
            calls.begin(self._model.calls, tasks, self._model.execute(request.state.request_id, tasks[0]))
            if is_stream:
                stream = EventStream(calls, await calls.first_events(), renderer)
                stack.pop_all()  # the stream closes the calls
                return stream
            return _json(renderer.whole(await calls.outcome()))

    # ── text and tokens ──

    async def tokenize(self, request: Request) -> Response:
        body = await self._read(request)
        generator = await self._model.generator()
        has_strings = boolean(body, "return_token_strs", False)
        tokens = await tokenization.tokenize(body, generator)
        token_strs = [generator.tokenizer.token_text(token_id) for token_id in tokens] if has_strings else None
        max_model_len = generator.info.max_model_len
        return _json({"count": len(tokens), "max_model_len": max_model_len, "tokens": tokens, "token_strs": token_strs})

    async def detokenize(self, request: Request) -> Response:
        body = await self._read(request)
        return _json({"prompt": await tokenization.detokenize(body, await self._model.generator())})

    # ── models and status ──

    async def models(self, _request: Request) -> Response:
        return _json({"object": "list", "data": await self._model.describe()})

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["id"]
        for model in await self._model.describe():
            if model["id"] == name:
                return _json(model)
        raise unknown_model(name)

    async def health(self, _request: Request) -> Response:
        if not self._model.is_ready:
            raise HttpError(503, "The model cannot take requests now.", kind="server_error", code="model_unavailable")
        return _json({})

    async def metrics(self, _request: Request) -> Response:
        self._model.export()
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def version(self, _request: Request) -> Response:
        return _json({"version": self._version})

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
        name = body.get("model")
        if name is not None and not isinstance(name, str):
            raise BadInput("Type mismatch of '/model', expected 'string'")
        if name is not None and name not in self._model.names:
            raise unknown_model(name[:256])
        return body

    def _model_name(self, body: dict[str, Any]) -> str:
        return body.get("model") or self._model.name


def _json(value: Any) -> Response:
    return Response(value if isinstance(value, bytes) else msgspec.json.encode(value), media_type="application/json")
