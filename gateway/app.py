"""The table of all routes and middleware, and the one place where exceptions become error responses.

Inference routes run on plain ASGI (`http/exchange.py`, `pipeline.py`); the others are starlette endpoints.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import BinaryIO

from engine.protocol.api_format import ApiFormat
from gateway import authentication, pipeline, quotas
from gateway.call import Endpoint, WebSocketEndpoint
from gateway.errors import ClientLeft, Reason, Refusal, refusal_of
from gateway.http import binding
from gateway.http.cors import Cors, CorsPolicy, preflight_headers
from gateway.http.exchange import App, Exchange, Headers, Receive, Scope, Send
from gateway.http.head_validation import HeadValidator
from gateway.inference import stored_responses, tomarkdown
from gateway.inference.audio import TRANSCRIPTIONS
from gateway.inference.binding_run import BINDING_RUN
from gateway.inference.chat_completions import CHAT_COMPLETIONS
from gateway.inference.completions import COMPLETIONS
from gateway.inference.embeddings import EMBEDDINGS
from gateway.inference.images import IMAGE_EDITS, IMAGE_GENERATIONS
from gateway.inference.messages import MESSAGE_TOKENS, MESSAGES
from gateway.inference.moderations import MODERATIONS
from gateway.inference.rerank import RERANK
from gateway.inference.responses import RESPONSE_TOKENS, RESPONSES
from gateway.inference.run import RUN, RUN_NAMED
from gateway.inference.speech import SPEECH
from gateway.management import (
    account_operation,
    accounts,
    api_tokens,
    audit,
    batches,
    call_timeline,
    catalog_changes,
    dashboard,
    docs,
    events,
    finetunes,
    fleet,
    foreign_engines,
    health,
    members,
    metric_summaries,
    model_page,
    models,
    node_enrollment,
    placement_explanation,
    platform_health,
    platform_settings,
    platform_usage,
    publications,
    scaling,
    sign_in,
    token_verification,
    usage,
    users,
    webhooks,
)
from gateway.management.endpoint import Endpoint as ManagementEndpoint
from gateway.management.endpoint import ManagementRequest, call_in_turn
from gateway.middleware import AccessLog, RequestIdentity, identity_headers, ray_suffix
from gateway.routing import Access, Route, Router
from gateway.services import Services
from gateway.settings import GatewaySettings
from gateway.speech.endpoint import LIVE_SPEECH
from storage.columns import uuid7
from storage.errors import StoreError
from telemetry import metrics
from telemetry.fair_share import UNAUTHENTICATED, current_account
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
        Route("POST", base + "/audio/transcriptions", Access.RUN_MODELS, TRANSCRIPTIONS),
        Route("POST", base + "/audio/speech", Access.RUN_MODELS, SPEECH),
        Route("POST", base + "/images/generations", Access.RUN_MODELS, IMAGE_GENERATIONS),
        Route("POST", base + "/images/edits", Access.RUN_MODELS, IMAGE_EDITS),
        Route("POST", base + "/rerank", Access.RUN_MODELS, RERANK),
        Route("POST", base + "/moderations", Access.RUN_MODELS, MODERATIONS),
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
    Route("GET", ACCOUNT + "/ai/run/{model...}", Access.RUN_MODELS, LIVE_SPEECH),
    *_openai_routes(ACCOUNT + "/ai/v1"),
    Route("GET", ACCOUNT + "/ai/models/search", Access.RUN_MODELS, models.search),
    Route("GET", ACCOUNT + "/ai/models/schema", Access.RUN_MODELS, models.schema),
    Route("GET", ACCOUNT + "/ai/authors/search", Access.RUN_MODELS, models.search_authors),
    Route("GET", ACCOUNT + "/ai/tasks/search", Access.RUN_MODELS, models.search_tasks),
    Route("POST", ACCOUNT + "/ai/tomarkdown", Access.RUN_MODELS, tomarkdown.convert),
    Route("GET", ACCOUNT + "/ai/tomarkdown/supported", Access.RUN_MODELS, tomarkdown.list_supported),
    Route("GET", ACCOUNT + "/ai/models/disabled", Access.READ_ACCOUNT, account_operation.list_disabled),
    Route("PUT", ACCOUNT + "/ai/models/disabled/{model...}", Access.WRITE_PLATFORM, account_operation.disable),
    Route("DELETE", ACCOUNT + "/ai/models/disabled/{model...}", Access.WRITE_PLATFORM, account_operation.enable),
    Route("GET", ACCOUNT + "/ai/batches", Access.READ_ACCOUNT, batches.list_),
    Route("GET", ACCOUNT + "/ai/batches/{batch_id}", Access.READ_ACCOUNT, batches.get),
    Route("POST", ACCOUNT + "/ai/batches/{batch_id}/cancel", Access.RUN_MODELS, batches.cancel),
    Route("GET", ACCOUNT + "/ai/webhooks/deliveries", Access.READ_ACCOUNT, webhooks.list_deliveries),
    Route("GET", ACCOUNT + "/ai/webhooks/key", Access.WRITE_AI, webhooks.get),
    Route("PUT", ACCOUNT + "/ai/webhooks/key", Access.WRITE_AI, webhooks.replace),
    Route("DELETE", ACCOUNT + "/ai/webhooks/key", Access.WRITE_AI, webhooks.remove),
    Route("POST", ACCOUNT + "/ai/price/{model...}", Access.RUN_MODELS, usage.price),
    Route("GET", ACCOUNT + "/ai/usage", Access.READ_ACCOUNT, usage.summed),
    Route("GET", ACCOUNT + "/ai/usage/calls", Access.READ_ACCOUNT, usage.list_calls),
    Route("GET", ACCOUNT + "/ai/usage/calls/{request_id}", Access.READ_ACCOUNT, call_timeline.get),
    Route("GET", ACCOUNT + "/ai/usage/latency", Access.READ_ACCOUNT, usage.latency),
    Route("GET", ACCOUNT + "/ai/usage/export", Access.READ_ACCOUNT, usage.export),
    Route("GET", ACCOUNT + "/ai/usage/forecast", Access.READ_ACCOUNT, usage.forecast),
    Route("GET", ACCOUNT + "/ai/usage/budgets", Access.READ_ACCOUNT, usage.list_budgets),
    Route("PUT", ACCOUNT + "/ai/usage/budgets", Access.WRITE_ACCOUNT, usage.put_budget),
    Route("DELETE", ACCOUNT + "/ai/usage/budgets", Access.WRITE_ACCOUNT, usage.remove_budget),
    Route("GET", ACCOUNT + "/ai/usage/alerts", Access.READ_ACCOUNT, usage.list_alerts),
    Route("GET", BASE + "/accounts", Access.PROVEN, accounts.list_),
    Route("POST", BASE + "/accounts", Access.PROVEN, accounts.create),
    Route("GET", ACCOUNT, Access.READ_ACCOUNT, accounts.get),
    Route("PUT", ACCOUNT, Access.WRITE_ACCOUNT, accounts.update),
    Route("DELETE", ACCOUNT, Access.WRITE_ACCOUNT, accounts.delete),
    Route("GET", ACCOUNT + "/audit_logs", Access.READ_ACCOUNT, audit.list_),
    Route("GET", ACCOUNT + "/operation", Access.READ_PLATFORM, account_operation.get),
    Route("PUT", ACCOUNT + "/operation", Access.WRITE_PLATFORM, account_operation.update),
    Route("GET", ACCOUNT + "/members", Access.READ_ACCOUNT, members.list_),
    Route("POST", ACCOUNT + "/members", Access.WRITE_ACCOUNT, members.create),
    Route("GET", ACCOUNT + "/members/{member_id}", Access.READ_ACCOUNT, members.get),
    Route("PUT", ACCOUNT + "/members/{member_id}", Access.WRITE_ACCOUNT, members.update),
    Route("DELETE", ACCOUNT + "/members/{member_id}", Access.WRITE_ACCOUNT, members.delete),
    Route("GET", ACCOUNT + "/roles", Access.READ_ACCOUNT, members.list_roles),
    Route("GET", ACCOUNT + "/roles/{role_id}", Access.READ_ACCOUNT, members.get_role),
    Route("GET", BASE + "/usage", Access.READ_PLATFORM, platform_usage.summed),
    Route("GET", BASE + "/usage/calls", Access.READ_PLATFORM, platform_usage.list_calls),
    Route("GET", BASE + "/usage/export", Access.READ_PLATFORM, platform_usage.export),
    Route("GET", BASE + "/models", Access.PROVEN, models.search),
    Route("GET", BASE + "/models/schema", Access.PROVEN, models.schema),
    Route("GET", BASE + "/models/{model...}", Access.READ_PLATFORM, model_page.get),
    Route("GET", BASE + "/aliases", Access.READ_PLATFORM, catalog_changes.list_aliases),
    Route("PUT", BASE + "/aliases/{model...}", Access.WRITE_PLATFORM, catalog_changes.set_alias),
    Route("DELETE", BASE + "/aliases/{model...}", Access.WRITE_PLATFORM, catalog_changes.remove_alias),
    Route("GET", BASE + "/deprecations", Access.READ_PLATFORM, catalog_changes.list_deprecations),
    Route("PUT", BASE + "/deprecations/{model...}", Access.WRITE_PLATFORM, catalog_changes.deprecate),
    Route("DELETE", BASE + "/deprecations/{model...}", Access.WRITE_PLATFORM, catalog_changes.remove_deprecation),
    Route("POST", BASE + "/publications", Access.WRITE_PLATFORM, publications.create),
    Route("GET", BASE + "/publications", Access.READ_PLATFORM, publications.list_),
    Route("GET", BASE + "/publications/{publication_id}", Access.READ_PLATFORM, publications.get),
    Route("DELETE", BASE + "/publications/{publication_id}", Access.WRITE_PLATFORM, publications.cancel),
    Route("GET", BASE + "/nodes", Access.READ_PLATFORM, fleet.list_nodes),
    Route("POST", BASE + "/nodes/{node_id}/drain", Access.WRITE_PLATFORM, fleet.drain),
    Route("POST", BASE + "/nodes/{node_id}/undrain", Access.WRITE_PLATFORM, fleet.undrain),
    Route("POST", BASE + "/nodes/{node_id}/replicas", Access.WRITE_PLATFORM, fleet.load),
    Route("DELETE", BASE + "/nodes/{node_id}/replicas/{model...}", Access.WRITE_PLATFORM, fleet.unload),
    Route("GET", BASE + "/engines", Access.READ_PLATFORM, foreign_engines.list_),
    Route("PUT", BASE + "/engines/{name}", Access.WRITE_PLATFORM, foreign_engines.register),
    Route("DELETE", BASE + "/engines/{name}", Access.WRITE_PLATFORM, foreign_engines.remove),
    Route("POST", BASE + "/nodes/{node_id}/pins", Access.WRITE_PLATFORM, fleet.pin),
    Route("DELETE", BASE + "/nodes/{node_id}/pins/{model...}", Access.WRITE_PLATFORM, fleet.unpin),
    Route("POST", BASE + "/nodes/enroll", Access.CHECKED_BY_ENDPOINT, node_enrollment.enroll),
    Route("POST", BASE + "/nodes/ring", Access.CHECKED_BY_ENDPOINT, node_enrollment.read_ring),
    Route("GET", BASE + "/pops", Access.READ_PLATFORM, fleet.list_pops),
    Route("POST", BASE + "/pops/{pop}/drain", Access.WRITE_PLATFORM, fleet.drain_pop),
    Route("POST", BASE + "/pops/{pop}/undrain", Access.WRITE_PLATFORM, fleet.undrain_pop),
    Route("GET", BASE + "/scaling/plan", Access.READ_PLATFORM, scaling.plan),
    Route("GET", BASE + "/scaling/what_if", Access.READ_PLATFORM, scaling.what_if),
    Route("GET", BASE + "/scaling/overrides", Access.READ_PLATFORM, scaling.list_overrides),
    Route("PUT", BASE + "/scaling/overrides/{model...}", Access.WRITE_PLATFORM, scaling.put_override),
    Route("DELETE", BASE + "/scaling/overrides/{model...}", Access.WRITE_PLATFORM, scaling.remove_override),
    Route("GET", BASE + "/scaling/reserved_capacity", Access.READ_PLATFORM, scaling.list_reservations),
    Route("GET", ACCOUNT + "/ai/reserved_capacity", Access.READ_ACCOUNT, scaling.list_own_reservations),
    Route("PUT", ACCOUNT + "/ai/reserved_capacity/{model...}", Access.WRITE_PLATFORM, scaling.put_reservation),
    Route("DELETE", ACCOUNT + "/ai/reserved_capacity/{model...}", Access.WRITE_PLATFORM, scaling.remove_reservation),
    Route("GET", BASE + "/metrics/summary", Access.READ_PLATFORM, metric_summaries.of_platform),
    Route("GET", ACCOUNT + "/ai/metrics/summary", Access.READ_ACCOUNT, metric_summaries.of_account),
    Route("GET", ACCOUNT + "/ai/placement/explain", Access.READ_ACCOUNT, placement_explanation.explain),
    Route("GET", BASE + "/events", Access.PROVEN, events.stream),
    Route("GET", BASE + "/health", Access.READ_PLATFORM, platform_health.get),
    Route("GET", BASE + "/settings", Access.READ_PLATFORM, platform_settings.list_),
    Route("GET", BASE + "/audit_logs", Access.READ_PLATFORM, audit.list_all),
    Route("GET", BASE + "/audit_logs/verification", Access.READ_PLATFORM, audit.verify),
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
    Route("GET", BASE + "/finetunes", Access.READ_PLATFORM, finetunes.list_all),
    Route("PUT", BASE + "/finetunes/{finetune_id}/approval", Access.WRITE_PLATFORM, finetunes.approve),
    Route("DELETE", BASE + "/finetunes/{finetune_id}/approval", Access.WRITE_PLATFORM, finetunes.withdraw_approval),
    Route("GET", BASE + "/user/tokens/verify", Access.CHECKED_BY_ENDPOINT, token_verification.verify_user_token),
    Route("GET", ACCOUNT + "/tokens/verify", Access.CHECKED_BY_ENDPOINT, token_verification.verify_account_token),
    *_token_routes(BASE + "/user/tokens", Access.READ_USER_TOKENS, Access.WRITE_USER_TOKENS),
    *_token_routes(ACCOUNT + "/tokens", Access.READ_ACCOUNT_TOKENS, Access.WRITE_ACCOUNT_TOKENS),
    # Routes of a Worker's AI binding; see `http/binding.py`.
    Route("POST", "/run", Access.RUN_MODELS, BINDING_RUN),
    Route("GET", "/run", Access.RUN_MODELS, LIVE_SPEECH),
    Route("POST", "/ai-gateway/run", Access.RUN_MODELS, BINDING_RUN),
    Route("GET", "/ai-api/models/search", Access.RUN_MODELS, models.search),
    Route("POST", "/to-everything/markdown/transformer", Access.RUN_MODELS, tomarkdown.transform),
    Route("GET", "/to-everything/markdown/supported", Access.RUN_MODELS, tomarkdown.list_supported),
    Route("GET", "/healthz", Access.PUBLIC, health.healthz),
    Route("GET", "/readyz", Access.PUBLIC, health.readyz),
    Route("GET", health.METRICS_PATH, Access.PUBLIC, health.Metrics()),
)
_DASHBOARD = dashboard.Dashboard(dashboard.FOLDER)
ROUTES = (
    *_ROUTES,
    *_openai_routes("/v1"),  # the account is that of the API token
    Route("GET", "/openapi.json", Access.PUBLIC, docs.OpenApi(_ROUTES)),
    Route("GET", "/admin/sign-in-methods", Access.PUBLIC, sign_in.methods),
    Route("POST", "/admin/sign-in/password", Access.CHECKED_BY_ENDPOINT, sign_in.with_password),
    Route("POST", "/admin/sign-in/link", Access.CHECKED_BY_ENDPOINT, sign_in.with_link),
    Route("GET", "/admin/sign-in", Access.PUBLIC, sign_in.begin),
    Route("GET", "/admin/callback", Access.PUBLIC, sign_in.finish),
    Route("GET", "/admin/session", Access.CHECKED_BY_ENDPOINT, sign_in.session),
    Route("POST", "/admin/sign-out", Access.CHECKED_BY_ENDPOINT, sign_in.end),
    Route("GET", "/", Access.PUBLIC, _DASHBOARD.redirect),
    Route("GET", "/dashboard", Access.PUBLIC, _DASHBOARD.page, may_end_in_slash=True),
    Route("GET", "/dashboard/{path...}", Access.PUBLIC, _DASHBOARD.file),
    Route("GET", "/docs", Access.PUBLIC, docs.page),
    Route("GET", "/docs/docs.js", Access.PUBLIC, docs.script),
    Route("GET", "/docs/docs.css", Access.PUBLIC, docs.style),
)
_OPENAI_PATH = re.compile(rb"(?:/client/v4/accounts/[^/]+/ai)?/v1(?:/(messages)?|$)")
# Paths that OpenAI's clients request below a wrong base URL.
_WITHOUT_BASE = re.compile(rb"/(?:chat/completions|completions|embeddings|responses|models)$")


def build_app(services: Services) -> App:
    """Return the ASGI app with its middleware."""
    has_metrics = not services.settings.metrics_listen
    return _build(services, [route for route in ROUTES if has_metrics or route.path != health.METRICS_PATH])


def build_metrics_app(services: Services) -> App:
    """Return the ASGI app of the separate listener for metrics, which also serves liveness and readiness."""
    paths = (health.METRICS_PATH, "/healthz", "/readyz")
    return _build(services, [route for route in ROUTES if route.path in paths])


def error_headers(settings: GatewaySettings) -> Callable[[bytes | None], Headers]:
    """Return a function for the headers that responses have which do not come from the app. Its argument is the
    request's Origin header, if known."""
    policy, suffix = CorsPolicy(_listed(settings.cors_origins)), ray_suffix(settings.pop)
    return lambda origin: [*identity_headers(uuid7(), suffix), *policy.headers_for(origin)]


def _build(services: Services, routes: Iterable[Route]) -> App:
    app: App = _App(services, routes)
    origins = _listed(services.settings.cors_origins)
    if origins:
        app = Cors(app, CorsPolicy(origins))
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

    def __init__(self, services: Services, routes: Iterable[Route]) -> None:
        self._services = services
        self._router = Router(routes)
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

    async def _handle(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        current_account.set(UNAUTHENTICATED)
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
        if isinstance(route.endpoint, WebSocketEndpoint) and not exchange.is_web_socket:
            raise Refusal(Reason.METHOD_NOT_ALLOWED, scope["method"], allow="POST")
        if isinstance(route.endpoint, Endpoint):
            account_id, model = parameters.get("account_id", account_id), parameters.get("model")
            await pipeline.serve(self._services, route.endpoint, exchange, account_id, model)
            return
        if route.access not in (Access.PUBLIC, Access.CHECKED_BY_ENDPOINT):
            account_id = parameters.get("account_id", account_id)
            authorize = functools.partial(self._authorize, scope["method"], route.access, account_id, exchange)
            scope["hearth.principal"] = principal = await authorize()
            scope["hearth.authorize"] = authorize
            await quotas.count_request(self._services, exchange, principal)
            _check_no_null(scope["query_string"], parameters)
        exchange.check_content_encoding()
        if isinstance(route.endpoint, WebSocketEndpoint):
            model = parameters.get("model")
            await self._serve_web_socket(route.endpoint, exchange, principal, authorize, model)
            return
        scope["path_params"] = parameters
        scope["hearth.exchange"] = exchange
        handler: ManagementEndpoint = route.endpoint
        response = await call_in_turn(self._services, handler, ManagementRequest(self._services, scope, receive))
        response.raw_headers.extend(exchange.response_headers)
        exchange.has_started = True
        await response(scope, receive, send)

    async def _serve_web_socket(
        self,
        endpoint: WebSocketEndpoint,
        exchange: Exchange,
        principal: Principal,
        authorize: Callable[[], Awaitable[Principal]],
        model: str | None,
    ) -> None:
        locations = self._services.locations

        async def verify() -> Principal:
            return locations.restrict(await authorize(), exchange)

        principal = locations.restrict(principal, exchange)
        await endpoint.serve(self._services, exchange, principal, verify, model)

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
        principal = await authentication.authenticate(self._services, method, exchange.headers, exchange.peer)
        exchange.mark_authenticated(principal.party)
        if access is Access.PROVEN:
            return principal
        if access in (Access.READ_PLATFORM, Access.WRITE_PLATFORM):
            return authentication.authorize_platform(principal, access.value, account_id)
        if account_id is None and access is Access.RUN_MODELS:
            account_id = principal.account_id
        if account_id is None:
            return authentication.authorize_user(principal, "" if access is Access.USER else access.value)
        return authentication.authorize(principal, account_id, access.value)
