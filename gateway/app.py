"""The table of all routes and middleware, and the one place where exceptions become error responses.

Inference routes run on plain ASGI (`http/exchange.py`, `pipeline.py`); the others are starlette endpoints.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import BinaryIO

from engine.protocol.api_format import ApiFormat
from gateway import authentication, pipeline, quotas
from gateway.call import Endpoint
from gateway.errors import ClientLeft, Reason, Refusal, refusal_of
from gateway.http import binding
from gateway.http.cors import Cors, preflight_headers
from gateway.http.exchange import App, Exchange, Receive, Scope, Send
from gateway.http.head_validation import HeadValidator
from gateway.inference import stored_responses, tomarkdown
from gateway.inference.binding_run import BINDING_RUN
from gateway.inference.chat_completions import CHAT_COMPLETIONS
from gateway.inference.completions import COMPLETIONS
from gateway.inference.embeddings import EMBEDDINGS
from gateway.inference.messages import MESSAGE_TOKENS, MESSAGES
from gateway.inference.responses import RESPONSE_TOKENS, RESPONSES
from gateway.inference.run import RUN, RUN_NAMED
from gateway.management import (
    accounts,
    api_tokens,
    audit,
    docs,
    finetunes,
    health,
    models,
    sign_in,
    token_verification,
    usage,
    users,
    webhooks,
)
from gateway.management.endpoint import Endpoint as ManagementEndpoint
from gateway.management.endpoint import ManagementRequest
from gateway.middleware import AccessLog, RequestIdentity
from gateway.routing import Access, Route, Router
from gateway.services import Services
from storage.errors import StoreError
from telemetry import metrics
from tenants.credentials.principal import Principal

log = logging.getLogger(__name__)

BASE = "/client/v4"
ACCOUNT = BASE + "/accounts/{account_id}"


def _token_routes(base: str, reading: Access, writing: Access) -> tuple[Route, ...]:
    """Return the routes for a user's API tokens, or for an account's if the path has an account."""
    return (
        Route("GET", base, reading, api_tokens.list_),
        Route("POST", base, writing, api_tokens.create),
        Route("GET", base + "/permission_groups", reading, api_tokens.list_groups),
        Route("GET", base + "/{api_token_id}", reading, api_tokens.get),
        Route("PUT", base + "/{api_token_id}", writing, api_tokens.update),
        Route("DELETE", base + "/{api_token_id}", writing, api_tokens.delete),
        Route("PUT", base + "/{api_token_id}/value", writing, api_tokens.roll),
    )


def _openai_routes(base: str) -> tuple[Route, ...]:
    """Return the routes of OpenAI's and Anthropic's clients below a base URL."""
    responses = base + "/responses/{response_id}"
    return (
        Route("POST", base + "/chat/completions", Access.RUN_MODELS, CHAT_COMPLETIONS),
        Route("POST", base + "/completions", Access.RUN_MODELS, COMPLETIONS),
        Route("POST", base + "/embeddings", Access.RUN_MODELS, EMBEDDINGS),
        Route("POST", base + "/responses", Access.RUN_MODELS, RESPONSES),
        Route("POST", base + "/responses/input_tokens", Access.RUN_MODELS, RESPONSE_TOKENS),
        Route("GET", responses, Access.RUN_MODELS, stored_responses.get),
        Route("DELETE", responses, Access.RUN_MODELS, stored_responses.delete),
        Route("POST", responses + "/cancel", Access.RUN_MODELS, stored_responses.cancel),
        Route("GET", responses + "/input_items", Access.RUN_MODELS, stored_responses.list_input),
        Route("POST", base + "/messages", Access.RUN_MODELS, MESSAGES),
        Route("POST", base + "/messages/count_tokens", Access.RUN_MODELS, MESSAGE_TOKENS),
        Route("GET", base + "/models", Access.RUN_MODELS, models.list_openai),
        Route("GET", base + "/models/{model...}", Access.RUN_MODELS, models.get_openai),
    )


_ROUTES = (
    Route("POST", ACCOUNT + "/ai/run", Access.RUN_MODELS, RUN_NAMED),
    Route("POST", ACCOUNT + "/ai/run/{model...}", Access.RUN_MODELS, RUN),
    *_openai_routes(ACCOUNT + "/ai/v1"),
    Route("GET", ACCOUNT + "/ai/models/search", Access.RUN_MODELS, models.search),
    Route("GET", ACCOUNT + "/ai/models/schema", Access.RUN_MODELS, models.schema),
    Route("GET", ACCOUNT + "/ai/authors/search", Access.RUN_MODELS, models.search_authors),
    Route("GET", ACCOUNT + "/ai/tasks/search", Access.RUN_MODELS, models.search_tasks),
    Route("POST", ACCOUNT + "/ai/tomarkdown", Access.RUN_MODELS, tomarkdown.convert),
    Route("GET", ACCOUNT + "/ai/tomarkdown/supported", Access.RUN_MODELS, tomarkdown.list_supported),
    Route("GET", ACCOUNT + "/ai/webhooks/key", Access.WRITE_AI, webhooks.get),
    Route("PUT", ACCOUNT + "/ai/webhooks/key", Access.WRITE_AI, webhooks.replace),
    Route("DELETE", ACCOUNT + "/ai/webhooks/key", Access.WRITE_AI, webhooks.remove),
    Route("POST", ACCOUNT + "/ai/price/{model...}", Access.RUN_MODELS, usage.price),
    Route("GET", ACCOUNT + "/ai/usage", Access.READ_ACCOUNT, usage.summed),
    Route("GET", ACCOUNT + "/ai/usage/calls", Access.READ_ACCOUNT, usage.list_calls),
    Route("GET", ACCOUNT + "/ai/usage/latency", Access.READ_ACCOUNT, usage.latency),
    Route("GET", ACCOUNT + "/ai/usage/export", Access.READ_ACCOUNT, usage.export),
    Route("GET", ACCOUNT + "/ai/usage/forecast", Access.READ_ACCOUNT, usage.forecast),
    Route("GET", ACCOUNT + "/ai/usage/budgets", Access.READ_ACCOUNT, usage.list_budgets),
    Route("PUT", ACCOUNT + "/ai/usage/budgets", Access.WRITE_ACCOUNT, usage.put_budget),
    Route("DELETE", ACCOUNT + "/ai/usage/budgets", Access.WRITE_ACCOUNT, usage.remove_budget),
    Route("GET", ACCOUNT + "/ai/usage/alerts", Access.READ_ACCOUNT, usage.list_alerts),
    Route("GET", BASE + "/accounts", Access.PROVEN, accounts.list_),
    Route("POST", BASE + "/accounts", Access.USER, accounts.create),
    Route("GET", ACCOUNT, Access.READ_ACCOUNT, accounts.get),
    Route("PUT", ACCOUNT, Access.WRITE_ACCOUNT, accounts.update),
    Route("DELETE", ACCOUNT, Access.WRITE_ACCOUNT, accounts.delete),
    Route("GET", ACCOUNT + "/audit_logs", Access.READ_ACCOUNT, audit.list_),
    Route("GET", BASE + "/user", Access.USER, users.get),
    Route("PATCH", BASE + "/user", Access.USER, users.update),
    Route("GET", BASE + "/memberships", Access.USER, users.list_memberships),
    Route("GET", BASE + "/memberships/{membership_id}", Access.USER, users.get_membership),
    Route("PUT", BASE + "/memberships/{membership_id}", Access.USER, users.answer_invitation),
    Route("DELETE", BASE + "/memberships/{membership_id}", Access.USER, users.leave),
    Route("POST", ACCOUNT + "/ai/finetunes", Access.WRITE_AI, finetunes.create, may_end_in_slash=True),
    Route("GET", ACCOUNT + "/ai/finetunes", Access.RUN_MODELS, finetunes.list_own, may_end_in_slash=True),
    Route("GET", ACCOUNT + "/ai/finetunes/public", Access.RUN_MODELS, finetunes.list_public, may_end_in_slash=True),
    Route("GET", ACCOUNT + "/ai/finetunes/{finetune_id}", Access.RUN_MODELS, finetunes.get, may_end_in_slash=True),
    Route("DELETE", ACCOUNT + "/ai/finetunes/{finetune_id}", Access.WRITE_AI, finetunes.delete, may_end_in_slash=True),
    Route(
        "POST",
        ACCOUNT + "/ai/finetunes/{finetune_id}/finetune-assets",
        Access.WRITE_AI,
        finetunes.upload,
        may_end_in_slash=True,
    ),
    Route("GET", BASE + "/user/tokens/verify", Access.CHECKED_BY_ENDPOINT, token_verification.verify_user_token),
    Route("GET", ACCOUNT + "/tokens/verify", Access.CHECKED_BY_ENDPOINT, token_verification.verify_account_token),
    *_token_routes(BASE + "/user/tokens", Access.READ_USER_TOKENS, Access.WRITE_USER_TOKENS),
    *_token_routes(ACCOUNT + "/tokens", Access.READ_ACCOUNT_TOKENS, Access.WRITE_ACCOUNT_TOKENS),
    # Routes of a Worker's AI binding; see `http/binding.py`.
    Route("POST", "/run", Access.RUN_MODELS, BINDING_RUN),
    Route("POST", "/ai-gateway/run", Access.RUN_MODELS, BINDING_RUN),
    Route("GET", "/ai-api/models/search", Access.RUN_MODELS, models.search),
    Route("POST", "/to-everything/markdown/transformer", Access.RUN_MODELS, tomarkdown.transform),
    Route("GET", "/to-everything/markdown/supported", Access.RUN_MODELS, tomarkdown.list_supported),
    Route("GET", "/healthz", Access.PUBLIC, health.healthz),
    Route("GET", "/readyz", Access.PUBLIC, health.readyz),
    Route("GET", "/metrics", Access.PUBLIC, health.prometheus),
)
ROUTES = (
    *_ROUTES,
    *_openai_routes("/v1"),  # the account is that of the API token
    Route("GET", "/openapi.json", Access.PUBLIC, docs.OpenApi(_ROUTES)),
    Route("GET", "/admin/sign-in", Access.PUBLIC, sign_in.begin),
    Route("GET", "/admin/callback", Access.PUBLIC, sign_in.finish),
    Route("GET", "/admin/session", Access.CHECKED_BY_ENDPOINT, sign_in.session),
    Route("POST", "/admin/sign-out", Access.CHECKED_BY_ENDPOINT, sign_in.end),
    Route("GET", "/docs", Access.PUBLIC, docs.page),
    Route("GET", "/docs/docs.js", Access.PUBLIC, docs.script),
    Route("GET", "/docs/docs.css", Access.PUBLIC, docs.style),
)
_OPENAI_PATH = re.compile(rb"(?:/client/v4/accounts/[^/]+/ai)?/v1(?:/(messages)?|$)")
# Paths that OpenAI's clients request below a wrong base URL.
_WITHOUT_BASE = re.compile(rb"/(?:chat/completions|completions|embeddings|responses|models)$")


def build_app(services: Services) -> App:
    """Return the ASGI app with its middleware."""
    app: App = _App(services)
    origins = _listed(services.settings.cors_origins)
    if origins:
        app = Cors(app, origins)
    app = AccessLog(app, _buffered_stderr() if services.settings.has_access_log else None)
    return RequestIdentity(app, services.settings.pop)


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _detect_format(scope: Scope, exchange: Exchange) -> None:
    """Set the format in which the client expects errors, before the route is known.

    Bindings and Anthropic's clients read the request id from every response, under different header names; other
    clients receive it once the model is known.
    """
    exchange.api_format = ApiFormat.NATIVE
    exchange.is_binding = binding.is_of_binding(scope)
    found = None if exchange.is_binding else _OPENAI_PATH.match(scope["raw_path"])
    if found is not None:
        exchange.api_format = ApiFormat.ANTHROPIC if found[1] else ApiFormat.OPENAI
    name = b"cf-ai-req-id" if exchange.is_binding else b"request-id" if found is not None and found[1] else None
    exchange.response_headers = [] if name is None else [(name, exchange.request_id.encode())]


def _check_no_null(query: bytes, parameters: Mapping[str, str]) -> None:
    """Raise Refusal for null characters: no stored value contains one, and PostgreSQL rejects them."""
    if b"%00" in query:
        raise Refusal(Reason.QUERY_INVALID, "a query parameter has a null character in it")
    if any("\0" in value for name, value in parameters.items() if name != "model"):
        raise Refusal(Reason.OBJECT_UNKNOWN)


def _buffered_stderr() -> BinaryIO:
    return open(2, "wb", buffering=64 * 1024, closefd=False)


class _App:
    """Routes requests, and renders exceptions."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._router = Router(ROUTES)
        self._head_validator = HeadValidator(_listed(services.settings.allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            await self._handle(scope, receive, send, exchange)
        except ClientLeft:
            pass
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                log.exception("internal error", extra={"request_id": exchange.request_id})
                metrics.INTERNAL_ERRORS.inc()
                refusal = Refusal(Reason.INTERNAL)
            elif isinstance(error, StoreError):
                log.warning(
                    "request refused: a store is unavailable",
                    extra={"request_id": exchange.request_id, "why": str(error)},
                )
            if exchange.has_started:
                await exchange.abort_response(refusal)
            else:
                await exchange.send_error(refusal)
        finally:
            exchange.close()

    async def _handle(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        _detect_format(scope, exchange)
        self._head_validator.check(scope)
        if binding.unwrap(scope):
            exchange.replace_request(scope)
            _detect_format(scope, exchange)
        account_id: str | None = scope.get("hearth.account_id")
        if exchange.is_binding:
            scope["query_string"] = exchange.query_string = binding.without_undefined(scope["query_string"])
        preflight = preflight_headers(scope)
        if preflight is not None:
            await exchange.send_empty(204, preflight)
            return
        route, parameters = self._match(scope, exchange)
        scope["hearth.route"] = route.path
        if isinstance(route.endpoint, Endpoint):
            account_id, model = parameters.get("account_id", account_id), parameters.get("model")
            await pipeline.serve(self._services, route.endpoint, exchange, account_id, model)
            return
        if route.access not in (Access.PUBLIC, Access.CHECKED_BY_ENDPOINT):
            principal = await self._authorize(
                scope["method"], route.access, parameters.get("account_id", account_id), exchange
            )
            scope["hearth.principal"] = principal
            await quotas.count_request(self._services, exchange, principal)
            _check_no_null(scope["query_string"], parameters)
        scope["path_params"] = parameters
        scope["hearth.exchange"] = exchange
        handler: ManagementEndpoint = route.endpoint
        response = await handler(self._services, ManagementRequest(self._services, scope, receive))
        response.raw_headers.extend(exchange.response_headers)
        exchange.has_started = True
        await response(scope, receive, send)

    def _match(self, scope: Scope, exchange: Exchange) -> tuple[Route, dict[str, str]]:
        """Return the route and its parameters. Raises Refusal, with the right base URL for OpenAI clients."""
        try:
            return self._router.match(scope["method"], scope["raw_path"])
        except Refusal as refusal:
            if refusal.reason is Reason.NO_ROUTE and _WITHOUT_BASE.search(scope["raw_path"]):
                exchange.api_format = ApiFormat.OPENAI
                raise Refusal(Reason.BASE_URL_WRONG) from None
            raise

    async def _authorize(self, method: str, access: Access, account_id: str | None, exchange: Exchange) -> Principal:
        """Return the caller, with permission to use the route in the account of the path. Raises Refusal."""
        principal = await self._authenticate(method, exchange)
        exchange.mark_authenticated()
        if access is Access.PROVEN:
            return principal
        if account_id is None and access is Access.RUN_MODELS:
            account_id = principal.account_id
        if account_id is None:
            return authentication.authorize_user(principal, "" if access is Access.USER else access.value)
        return authentication.authorize(principal, account_id, access.value)

    async def _authenticate(self, method: str, exchange: Exchange) -> Principal:
        """Return the caller, by the credential in the headers or else by an operator's session. Raises Refusal."""
        operators = self._services.operators
        if (
            operators is not None
            and not authentication.has_credential(exchange.headers)
            and operators.has_session_cookie(exchange.headers)
        ):
            return await operators.authenticate(method, exchange.headers)
        return await authentication.authenticate(self._services, exchange.headers, exchange.peer)
