"""Table of contents: all routes and all middleware, in order, as data; and the one place where failures become answers.

Inference routes run on plain ASGI (`http/exchange.py`, `pipeline.py`); the others are starlette endpoints.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import Response

from gateway import authentication, pipeline, quotas
from gateway.call import Door
from gateway.envelope import Dialect
from gateway.errors import ClientLeft, Reason, Refusal, refusal_of
from gateway.http import binding
from gateway.http.cors import Cors, preflight_headers
from gateway.http.exchange import App, Exchange, Headers, Receive, Scope, Send
from gateway.http.head_validation import HeadValidator
from gateway.inference import stored_responses as kept_responses
from gateway.inference import tomarkdown
from gateway.inference.binding_run import BINDING_RUN
from gateway.inference.chat_completions import CHAT_COMPLETIONS
from gateway.inference.completions import COMPLETIONS
from gateway.inference.embeddings import EMBEDDINGS
from gateway.inference.message_tokens import MESSAGE_TOKENS
from gateway.inference.messages import MESSAGES
from gateway.inference.response_tokens import RESPONSE_TOKENS
from gateway.inference.responses import RESPONSES
from gateway.inference.run import RUN
from gateway.inference.run_named import RUN_NAMED
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
from gateway.middleware import AccessLog, RequestIdentity
from gateway.routing import Access, Route, Router
from gateway.services import Services
from storage.errors import StoreError
from telemetry import metrics
from tenants.credentials.principal import Principal

log = logging.getLogger(__name__)

Endpoint = Callable[[Services, Request], Awaitable[Response]]

BASE = "/client/v4"
ACCOUNT = BASE + "/accounts/{account_id}"


def _token_routes(base: str, reading: Access, writing: Access) -> tuple[Route, ...]:
    """The same for a user's API tokens and an account's: an account in the path says whose."""
    return (
        Route("GET", base, reading, api_tokens.list_),
        Route("POST", base, writing, api_tokens.create),
        Route("GET", base + "/permission_groups", reading, api_tokens.list_groups),
        Route("GET", base + "/{api_token_id}", reading, api_tokens.get),
        Route("PUT", base + "/{api_token_id}", writing, api_tokens.update),
        Route("DELETE", base + "/{api_token_id}", writing, api_tokens.delete),
        Route("PUT", base + "/{api_token_id}/value", writing, api_tokens.roll),
    )


_ROUTES = (
    Route("POST", ACCOUNT + "/ai/run", Access.RUN_MODELS, RUN_NAMED),
    Route("POST", ACCOUNT + "/ai/run/{model...}", Access.RUN_MODELS, RUN),
    Route("POST", ACCOUNT + "/ai/v1/chat/completions", Access.RUN_MODELS, CHAT_COMPLETIONS),
    Route("POST", ACCOUNT + "/ai/v1/completions", Access.RUN_MODELS, COMPLETIONS),
    Route("POST", ACCOUNT + "/ai/v1/embeddings", Access.RUN_MODELS, EMBEDDINGS),
    Route("POST", ACCOUNT + "/ai/v1/responses", Access.RUN_MODELS, RESPONSES),
    Route("GET", ACCOUNT + "/ai/v1/responses/{response_id}", Access.RUN_MODELS, kept_responses.get),
    Route("DELETE", ACCOUNT + "/ai/v1/responses/{response_id}", Access.RUN_MODELS, kept_responses.delete),
    Route("POST", ACCOUNT + "/ai/v1/responses/input_tokens", Access.RUN_MODELS, RESPONSE_TOKENS),
    Route("POST", ACCOUNT + "/ai/v1/responses/{response_id}/cancel", Access.RUN_MODELS, kept_responses.cancel),
    Route("GET", ACCOUNT + "/ai/v1/responses/{response_id}/input_items", Access.RUN_MODELS, kept_responses.list_input),
    Route("POST", ACCOUNT + "/ai/v1/messages", Access.RUN_MODELS, MESSAGES),
    Route("POST", ACCOUNT + "/ai/v1/messages/count_tokens", Access.RUN_MODELS, MESSAGE_TOKENS),
    Route("GET", ACCOUNT + "/ai/v1/models", Access.RUN_MODELS, models.list_openai),
    Route("GET", ACCOUNT + "/ai/v1/models/{model...}", Access.RUN_MODELS, models.get_openai),
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
    Route("GET", BASE + "/user/tokens/verify", Access.PROVES_ITSELF, token_verification.verify_user_token),
    Route("GET", ACCOUNT + "/tokens/verify", Access.PROVES_ITSELF, token_verification.verify_account_token),
    *_token_routes(BASE + "/user/tokens", Access.READ_USER_TOKENS, Access.WRITE_USER_TOKENS),
    *_token_routes(ACCOUNT + "/tokens", Access.READ_ACCOUNT_TOKENS, Access.WRITE_ACCOUNT_TOKENS),
    # What a Worker's AI binding asks of its one origin; `http/binding.py` says how it comes here.
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
    Route("GET", "/openapi.json", Access.PUBLIC, docs.OpenApi(_ROUTES)),
    Route("GET", "/admin/sign-in", Access.PUBLIC, sign_in.begin),
    Route("GET", "/admin/callback", Access.PUBLIC, sign_in.finish),
    Route("GET", "/admin/session", Access.PROVES_ITSELF, sign_in.session),
    Route("POST", "/admin/sign-out", Access.PROVES_ITSELF, sign_in.end),
    Route("GET", "/docs", Access.PUBLIC, docs.page),
    Route("GET", "/docs/docs.js", Access.PUBLIC, docs.script),
    Route("GET", "/docs/docs.css", Access.PUBLIC, docs.style),
)
_ID_HEADERS: dict[Dialect, bytes] = {"binding": b"cf-ai-req-id", "anthropic": b"request-id"}
_OPENAI_PATH = re.compile(rb"/client/v4/accounts/[^/]+/ai/v1(?:/(messages)?|$)")


def build_app(services: Services) -> App:
    """The whole ASGI app."""
    app: App = _Front(services)
    origins = _listed(services.settings.cors_origins)
    if origins:
        app = Cors(app, origins)
    app = AccessLog(app, _buffered_stderr() if services.settings.has_access_log else None)
    return RequestIdentity(app, services.settings.pop)


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _dialect_of(scope: Scope) -> Dialect:
    """Known before the route is: refusals are told in it."""
    if binding.is_of_binding(scope):
        return "binding"
    found = _OPENAI_PATH.match(scope["raw_path"])
    return "native" if found is None else "anthropic" if found[1] else "openai"


def _first_headers(exchange: Exchange) -> Headers:
    """A binding and Anthropic's clients read their request's id from every answer, each under a name of its own; others
    find it where a model was reached."""
    name = _ID_HEADERS.get(exchange.dialect)
    return [] if name is None else [(name, exchange.request_id.encode())]


def _check_has_no_null(query: bytes, parameters: Mapping[str, str]) -> None:
    """Nothing that is looked up has a null character in it, and not every database takes one. Raises Refusal."""
    if b"%00" in query:
        raise Refusal(Reason.QUERY_INVALID, "a query parameter has a null character in it")
    if any("\0" in value for name, value in parameters.items() if name != "model"):
        raise Refusal(Reason.OBJECT_UNKNOWN)


def _buffered_stderr() -> BinaryIO:
    return open(2, "wb", buffering=64 * 1024, closefd=False)


class _Front:
    """Route, run, and render what went wrong."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._router = Router(ROUTES, services.echo_tenant.words_for_accounts)
        self._guard = HeadValidator(_listed(services.settings.allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            await self._run(scope, receive, send, exchange)
        except ClientLeft:
            pass
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                log.exception("internal error", extra={"request_id": exchange.request_id})
                metrics.INTERNAL_ERRORS.inc()
                refusal = Refusal(Reason.INTERNAL)
            elif isinstance(error, StoreError):
                log.warning("refused for want of a store", extra={"request_id": exchange.request_id, "why": str(error)})
            if exchange.has_started:
                await exchange.abort_response(refusal)
            else:
                await exchange.send_error(refusal)
        finally:
            exchange.close()

    async def _run(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        exchange.dialect = _dialect_of(scope)
        exchange.response_headers = _first_headers(exchange)
        self._guard.check(scope)
        if binding.unwrap(scope):
            exchange.replace_request(scope)
            exchange.dialect = _dialect_of(scope)
            exchange.response_headers = _first_headers(exchange)
        account_id: str | None = scope.get("hearth.account_id")
        if exchange.dialect == "binding":
            scope["query_string"] = exchange.query_string = binding.without_undefined(scope["query_string"])
        preflight = preflight_headers(scope)
        if preflight is not None:
            await exchange.send_empty(204, preflight)
            return
        route, parameters = self._router.match(scope["method"], scope["raw_path"])
        scope["hearth.route"] = route.path
        if isinstance(route.endpoint, Door):
            account_id, model = parameters.get("account_id", account_id), parameters.get("model")
            serve = pipeline.echo if self._services.echo_tenant.echoes(account_id, model) else pipeline.serve
            await serve(self._services, route.endpoint, exchange, account_id, model)
            return
        if route.access not in (Access.PUBLIC, Access.PROVES_ITSELF):
            principal = await self._admit(
                scope["method"], route.access, parameters.get("account_id", account_id), exchange
            )
            scope["hearth.principal"] = principal
            await quotas.pass_by(self._services, exchange, principal)
            _check_has_no_null(scope["query_string"], parameters)
        scope["path_params"] = parameters
        scope["hearth.exchange"] = exchange
        endpoint: Endpoint = route.endpoint
        response = await endpoint(self._services, Request(scope, receive))
        response.raw_headers.extend(exchange.response_headers)
        exchange.has_started = True
        await response(scope, receive, send)

    async def _admit(self, method: str, access: Access, account_id: str | None, exchange: Exchange) -> Principal:
        """Who is calling, as one of the account in the path, if this is open to them. Raises Refusal."""
        principal = await self._prove(method, exchange)
        exchange.mark_authenticated()
        if access is Access.PROVEN:
            return principal
        if account_id is None and access is Access.RUN_MODELS:
            account_id = principal.account_id
        if account_id is None:
            return authentication.permit_user(principal, "" if access is Access.USER else access.value)
        return authentication.permit(principal, account_id, access.value)

    async def _prove(self, method: str, exchange: Exchange) -> Principal:
        """By a credential in the headers, or else by an operator's session. Raises Refusal."""
        operators = self._services.operators
        if operators is not None and not authentication.has_credential(exchange.headers):
            cookie = operators.session_cookie_in(exchange.headers)
            if cookie:
                return await operators.authenticate(method, exchange.headers, cookie)
        address = self._services.client_address(exchange.peer)
        return await authentication.prove(self._services.verifier, exchange.headers, address)
