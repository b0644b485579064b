"""Access to every route with every kind of credential. A route without an entry in the table fails the test.

Runs the real app over a real database without a server. A marker replaces the handler of every route, except for
handlers that check the credential themselves.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.responses import Response

from bench import figures
from gateway import app as gateway_app
from gateway.app import ROUTES
from gateway.call import Endpoint
from gateway.openapi import document as openapi
from gateway.services import Services, open_services
from gateway.settings import GatewaySettings
from service_identity import key_ring as service_ring
from service_identity import service_tokens
from storage.database import Database
from telemetry.settings import read_settings
from tenants import accounts, operators, users
from tenants.credentials import api_tokens, user_tokens
from tenants.credentials.conditions import AddressCondition
from tenants.credentials.policies import Policy
from tenants.credentials.scopes import find_group
from tenants.credentials.web_sessions import SessionOwner, WebSessions
from tests.gateway.process import PARROT, PEPPER
from tests.gateway.site import Tenants, seed
from tests.service_keys import service_keys

A = "/client/v4/accounts/{account_id}"
ANYBODY, RUN, OWN_RUN, WRITE_AI = "anybody", "run", "run on one's own account", "write ai"
READ_ACCOUNT, WRITE_ACCOUNT = "read the account", "write the account"
READ_TOKENS, WRITE_TOKENS = "read the account's tokens", "write the account's tokens"
READ_OWN_TOKENS, WRITE_OWN_TOKENS = "read one's own tokens", "write one's own tokens"
USER, ACCOUNTS, NEW_ACCOUNT = "a user", "list accounts", "make an account"
CATALOG = "any good credential"
READ_PLATFORM, WRITE_PLATFORM = "read the platform", "change the platform"
EVENTS = "follow events of all accounts"  # test_events.py tests those of one account
SESSION = "a browser's session"
SIGN_IN = "the endpoint checks the origin and the credentials in the body"  # see test_user_sign_in.py
VERIFY_USER, VERIFY_ACCOUNT = "verify a user's token", "verify an account's token"

# The permission that each route requires. A new route needs an entry here.
TABLE = {
    ("POST", f"{A}/ai/run"): RUN,
    ("POST", f"{A}/ai/run/{{model...}}"): RUN,
    ("GET", f"{A}/ai/run/{{model...}}"): RUN,
    ("GET", "/run"): OWN_RUN,
    ("GET", f"{A}/ai/reserved_capacity"): READ_ACCOUNT,
    ("PUT", f"{A}/ai/reserved_capacity/{{model...}}"): WRITE_PLATFORM,
    ("DELETE", f"{A}/ai/reserved_capacity/{{model...}}"): WRITE_PLATFORM,
    ("GET", "/client/v4/scaling/plan"): READ_PLATFORM,
    ("GET", "/client/v4/scaling/what_if"): READ_PLATFORM,
    ("GET", "/client/v4/scaling/overrides"): READ_PLATFORM,
    ("PUT", "/client/v4/scaling/overrides/{model...}"): WRITE_PLATFORM,
    ("DELETE", "/client/v4/scaling/overrides/{model...}"): WRITE_PLATFORM,
    ("GET", "/client/v4/scaling/reserved_capacity"): READ_PLATFORM,
    ("POST", f"{A}/ai/v1/chat/completions"): RUN,
    ("POST", f"{A}/ai/v1/completions"): RUN,
    ("POST", f"{A}/ai/v1/embeddings"): RUN,
    ("POST", f"{A}/ai/v1/audio/transcriptions"): RUN,
    ("POST", f"{A}/ai/v1/audio/speech"): RUN,
    ("POST", f"{A}/ai/v1/images/generations"): RUN,
    ("POST", f"{A}/ai/v1/images/edits"): RUN,
    ("POST", f"{A}/ai/v1/rerank"): RUN,
    ("POST", f"{A}/ai/v1/moderations"): RUN,
    ("POST", f"{A}/ai/v1/responses"): RUN,
    ("GET", f"{A}/ai/v1/responses/{{response_id}}"): RUN,
    ("DELETE", f"{A}/ai/v1/responses/{{response_id}}"): RUN,
    ("POST", f"{A}/ai/v1/responses/input_tokens"): RUN,
    ("POST", f"{A}/ai/v1/responses/{{response_id}}/cancel"): RUN,
    ("GET", f"{A}/ai/v1/responses/{{response_id}}/input_items"): RUN,
    ("POST", f"{A}/ai/v1/messages"): RUN,
    ("POST", f"{A}/ai/v1/messages/count_tokens"): RUN,
    ("GET", f"{A}/ai/v1/models"): RUN,
    ("GET", f"{A}/ai/v1/models/{{model...}}"): RUN,
    ("GET", f"{A}/ai/models/search"): RUN,
    ("GET", f"{A}/ai/models/schema"): RUN,
    ("GET", f"{A}/ai/authors/search"): RUN,
    ("GET", f"{A}/ai/tasks/search"): RUN,
    ("POST", f"{A}/ai/tomarkdown"): RUN,
    ("GET", f"{A}/ai/tomarkdown/supported"): RUN,
    ("GET", f"{A}/ai/models/disabled"): READ_ACCOUNT,
    ("PUT", f"{A}/ai/models/disabled/{{model...}}"): WRITE_PLATFORM,
    ("DELETE", f"{A}/ai/models/disabled/{{model...}}"): WRITE_PLATFORM,
    ("GET", f"{A}/ai/batches"): READ_ACCOUNT,
    ("GET", f"{A}/ai/batches/{{batch_id}}"): READ_ACCOUNT,
    ("POST", f"{A}/ai/batches/{{batch_id}}/cancel"): RUN,
    ("GET", f"{A}/ai/webhooks/deliveries"): READ_ACCOUNT,
    ("GET", f"{A}/ai/webhooks/key"): WRITE_AI,
    ("PUT", f"{A}/ai/webhooks/key"): WRITE_AI,
    ("DELETE", f"{A}/ai/webhooks/key"): WRITE_AI,
    ("POST", f"{A}/ai/price/{{model...}}"): RUN,
    ("GET", f"{A}/ai/usage"): READ_ACCOUNT,
    ("GET", f"{A}/ai/usage/calls"): READ_ACCOUNT,
    ("GET", f"{A}/ai/usage/calls/{{request_id}}"): READ_ACCOUNT,
    ("GET", f"{A}/ai/usage/latency"): READ_ACCOUNT,
    ("GET", f"{A}/ai/usage/export"): READ_ACCOUNT,
    ("GET", f"{A}/ai/usage/forecast"): READ_ACCOUNT,
    ("GET", f"{A}/ai/usage/budgets"): READ_ACCOUNT,
    ("PUT", f"{A}/ai/usage/budgets"): WRITE_ACCOUNT,
    ("DELETE", f"{A}/ai/usage/budgets"): WRITE_ACCOUNT,
    ("GET", f"{A}/ai/usage/alerts"): READ_ACCOUNT,
    ("GET", "/client/v4/accounts"): ACCOUNTS,
    ("POST", "/client/v4/accounts"): NEW_ACCOUNT,
    ("GET", A): READ_ACCOUNT,
    ("PUT", A): WRITE_ACCOUNT,
    ("DELETE", A): WRITE_ACCOUNT,
    ("GET", f"{A}/audit_logs"): READ_ACCOUNT,
    ("GET", "/client/v4/models"): CATALOG,
    ("GET", "/client/v4/models/schema"): CATALOG,
    ("GET", f"{A}/operation"): READ_PLATFORM,
    ("PUT", f"{A}/operation"): WRITE_PLATFORM,
    ("GET", f"{A}/members"): READ_ACCOUNT,
    ("POST", f"{A}/members"): WRITE_ACCOUNT,
    ("GET", f"{A}/members/{{member_id}}"): READ_ACCOUNT,
    ("PUT", f"{A}/members/{{member_id}}"): WRITE_ACCOUNT,
    ("DELETE", f"{A}/members/{{member_id}}"): WRITE_ACCOUNT,
    ("GET", f"{A}/roles"): READ_ACCOUNT,
    ("GET", f"{A}/roles/{{role_id}}"): READ_ACCOUNT,
    ("GET", "/client/v4/usage"): READ_PLATFORM,
    ("GET", "/client/v4/usage/calls"): READ_PLATFORM,
    ("GET", "/client/v4/usage/export"): READ_PLATFORM,
    ("GET", "/client/v4/models/{model...}"): READ_PLATFORM,
    ("GET", "/client/v4/aliases"): READ_PLATFORM,
    ("PUT", "/client/v4/aliases/{model...}"): WRITE_PLATFORM,
    ("DELETE", "/client/v4/aliases/{model...}"): WRITE_PLATFORM,
    ("GET", "/client/v4/deprecations"): READ_PLATFORM,
    ("PUT", "/client/v4/deprecations/{model...}"): WRITE_PLATFORM,
    ("DELETE", "/client/v4/deprecations/{model...}"): WRITE_PLATFORM,
    ("POST", "/client/v4/publications"): WRITE_PLATFORM,
    ("GET", "/client/v4/publications"): READ_PLATFORM,
    ("GET", "/client/v4/publications/{publication_id}"): READ_PLATFORM,
    ("DELETE", "/client/v4/publications/{publication_id}"): WRITE_PLATFORM,
    ("GET", "/client/v4/engines"): READ_PLATFORM,
    ("PUT", "/client/v4/engines/{name}"): WRITE_PLATFORM,
    ("DELETE", "/client/v4/engines/{name}"): WRITE_PLATFORM,
    ("GET", "/client/v4/nodes"): READ_PLATFORM,
    ("POST", "/client/v4/nodes/{node_id}/drain"): WRITE_PLATFORM,
    ("POST", "/client/v4/nodes/{node_id}/undrain"): WRITE_PLATFORM,
    ("POST", "/client/v4/nodes/{node_id}/replicas"): WRITE_PLATFORM,
    ("DELETE", "/client/v4/nodes/{node_id}/replicas/{model...}"): WRITE_PLATFORM,
    ("POST", "/client/v4/nodes/enroll"): SIGN_IN,
    ("POST", "/client/v4/nodes/ring"): SIGN_IN,
    ("POST", "/client/v4/nodes/{node_id}/pins"): WRITE_PLATFORM,
    ("DELETE", "/client/v4/nodes/{node_id}/pins/{model...}"): WRITE_PLATFORM,
    ("GET", "/client/v4/pops"): READ_PLATFORM,
    ("POST", "/client/v4/pops/{pop}/drain"): WRITE_PLATFORM,
    ("POST", "/client/v4/pops/{pop}/undrain"): WRITE_PLATFORM,
    ("GET", "/client/v4/metrics/summary"): READ_PLATFORM,
    ("GET", f"{A}/ai/metrics/summary"): READ_ACCOUNT,
    ("GET", f"{A}/ai/placement/explain"): READ_ACCOUNT,
    ("GET", "/client/v4/events"): EVENTS,
    ("GET", "/client/v4/health"): READ_PLATFORM,
    ("GET", "/client/v4/settings"): READ_PLATFORM,
    ("GET", "/client/v4/audit_logs"): READ_PLATFORM,
    ("GET", "/client/v4/audit_logs/verification"): READ_PLATFORM,
    ("GET", "/client/v4/user"): USER,
    ("PATCH", "/client/v4/user"): USER,
    ("GET", "/client/v4/memberships"): USER,
    ("GET", "/client/v4/memberships/{membership_id}"): USER,
    ("PUT", "/client/v4/memberships/{membership_id}"): USER,
    ("DELETE", "/client/v4/memberships/{membership_id}"): USER,
    ("POST", f"{A}/ai/finetunes"): WRITE_AI,
    ("GET", f"{A}/ai/finetunes"): RUN,
    ("GET", f"{A}/ai/finetunes/public"): RUN,
    ("GET", f"{A}/ai/finetunes/{{finetune_id}}"): RUN,
    ("DELETE", f"{A}/ai/finetunes/{{finetune_id}}"): WRITE_AI,
    ("POST", f"{A}/ai/finetunes/{{finetune_id}}/finetune-assets"): WRITE_AI,
    ("GET", "/client/v4/finetunes"): READ_PLATFORM,
    ("PUT", "/client/v4/finetunes/{finetune_id}/approval"): WRITE_PLATFORM,
    ("DELETE", "/client/v4/finetunes/{finetune_id}/approval"): WRITE_PLATFORM,
    ("GET", "/client/v4/user/tokens/verify"): VERIFY_USER,
    ("GET", f"{A}/tokens/verify"): VERIFY_ACCOUNT,
    ("GET", "/client/v4/user/tokens"): READ_OWN_TOKENS,
    ("POST", "/client/v4/user/tokens"): WRITE_OWN_TOKENS,
    ("GET", "/client/v4/user/tokens/permission_groups"): READ_OWN_TOKENS,
    ("GET", "/client/v4/user/tokens/{api_token_id}"): READ_OWN_TOKENS,
    ("PUT", "/client/v4/user/tokens/{api_token_id}"): WRITE_OWN_TOKENS,
    ("DELETE", "/client/v4/user/tokens/{api_token_id}"): WRITE_OWN_TOKENS,
    ("PUT", "/client/v4/user/tokens/{api_token_id}/value"): WRITE_OWN_TOKENS,
    ("GET", f"{A}/tokens"): READ_TOKENS,
    ("POST", f"{A}/tokens"): WRITE_TOKENS,
    ("GET", f"{A}/tokens/permission_groups"): READ_TOKENS,
    ("GET", f"{A}/tokens/{{api_token_id}}"): READ_TOKENS,
    ("PUT", f"{A}/tokens/{{api_token_id}}"): WRITE_TOKENS,
    ("DELETE", f"{A}/tokens/{{api_token_id}}"): WRITE_TOKENS,
    ("PUT", f"{A}/tokens/{{api_token_id}}/value"): WRITE_TOKENS,
    ("POST", "/run"): OWN_RUN,
    ("POST", "/ai-gateway/run"): OWN_RUN,
    ("GET", "/ai-api/models/search"): OWN_RUN,
    ("POST", "/to-everything/markdown/transformer"): OWN_RUN,
    ("GET", "/to-everything/markdown/supported"): OWN_RUN,
    ("GET", "/healthz"): ANYBODY,
    ("GET", "/readyz"): ANYBODY,
    ("GET", "/metrics"): ANYBODY,
    ("GET", "/openapi.json"): ANYBODY,
    ("GET", "/admin/sign-in-methods"): ANYBODY,
    ("POST", "/admin/sign-in/password"): SIGN_IN,
    ("POST", "/admin/sign-in/link"): SIGN_IN,
    ("GET", "/admin/sign-in"): ANYBODY,
    ("GET", "/admin/callback"): ANYBODY,
    ("GET", "/admin/session"): SESSION,
    ("POST", "/admin/sign-out"): SESSION,
    ("GET", "/"): ANYBODY,
    ("GET", "/dashboard"): ANYBODY,
    ("GET", "/dashboard/{path...}"): ANYBODY,
    ("GET", "/docs"): ANYBODY,
    ("GET", "/docs/docs.js"): ANYBODY,
    ("GET", "/docs/docs.css"): ANYBODY,
}
# Below `/v1`, the account is the credential's own.
TABLE |= {(method, path.removeprefix(f"{A}/ai")): OWN_RUN for method, path in TABLE if path.startswith(f"{A}/ai/v1/")}
JUDGES_ITSELF = {SESSION, SIGN_IN, EVENTS, ACCOUNTS, NEW_ACCOUNT, VERIFY_USER, VERIFY_ACCOUNT}

MALFORMED, UNKNOWN, FORBIDDEN = (400, 9106), (401, 10000), (403, 10000)
CROSS_SITE = (403, 10004)
OUTSIDE, BLOCKED, NO_SUCH_TOKEN, REPEATED = (403, 10001), (403, 3023), (401, 1000), (400, 3003)
REACHED = (200, 0)

RUNS = frozenset({RUN, OWN_RUN})
AS_USER = frozenset({USER, VERIFY_USER})
READS, WRITES = frozenset({READ_ACCOUNT, ACCOUNTS}), frozenset({READ_ACCOUNT, ACCOUNTS, WRITE_ACCOUNT})
KEEPS = frozenset({READ_TOKENS, WRITE_TOKENS})
KEEPS_OWN = frozenset({READ_OWN_TOKENS, WRITE_OWN_TOKENS})
EVERYTHING = RUNS | {WRITE_AI, NEW_ACCOUNT} | WRITES | KEEPS | KEEPS_OWN | AS_USER | {VERIFY_ACCOUNT}
AS_MEMBER = READS | {READ_TOKENS, NEW_ACCOUNT, VERIFY_ACCOUNT} | KEEPS_OWN | AS_USER  # with the user's own key
NOTHING: frozenset[str] = frozenset()

GROUPS = {
    "Workers AI Read": RUNS,
    "Workers AI Write": RUNS | {WRITE_AI},
    "Account Settings Read": READS,
    "Account Settings Write": WRITES,
    "API Tokens Read": frozenset({READ_OWN_TOKENS}),
    "API Tokens Write": KEEPS_OWN,
    "Account API Tokens Read": frozenset({READ_TOKENS}),
    "Account API Tokens Write": KEEPS,
}
MANAGEMENT = ("Account Settings Write", "API Tokens Write", "Account API Tokens Write")


@dataclass(frozen=True)
class Credential:
    """Request headers, the permissions they grant on the table's account, and the expected error for other routes."""

    name: str
    headers: dict[str, str]
    opens: frozenset[str]
    refusal: tuple[int, int] = FORBIDDEN
    verify_refusal: tuple[int, int] = NO_SUCH_TOKEN
    own_run_refusal: tuple[int, int] | None = None
    user_refusal: tuple[int, int] | None = None
    query: str = ""

    def expected(self, what: str) -> tuple[int, int]:
        if what == ANYBODY or what in self.opens:
            return REACHED
        if what == SIGN_IN:  # a request without a body fails before its credentials are checked
            return REACHED
        if what == CATALOG:
            return REACHED if self.refusal == FORBIDDEN else self.refusal
        if what == SESSION:
            return UNKNOWN
        if what in (VERIFY_USER, VERIFY_ACCOUNT):
            return self.verify_refusal
        if what == OWN_RUN:
            return self.own_run_refusal or self.refusal
        if what in (USER, NEW_ACCOUNT, *KEEPS_OWN):
            return self.user_refusal or self.refusal
        return self.refusal


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def without(name: str, headers: dict[str, str], said: tuple[int, int] = MALFORMED, query: str = "") -> Credential:
    return Credential(name, headers, NOTHING, said, NO_SUCH_TOKEN if said == UNKNOWN else said, query=query)


def service_token() -> str:
    private = Ed25519PrivateKey.generate()
    key = service_ring.public_key(service_ring.public_half(private), "gateway/g", start_s=time.time() - 5, life_days=1)
    return service_tokens.sign(private, key, issuer="hearth", audience="gateway/g", now_s=time.time())


async def credentials(database: Database, tenants: Tenants) -> list[Credential]:
    """Return one credential of every kind."""
    main = tenants.account_id

    async def token(*groups: str, kind: Any = "user") -> dict[str, str]:
        return bearer((await api_tokens.create(database, PEPPER, main, "x", groups, None, kind)).secret)

    async def held(*groups: str, user_id: str = "", **fields: Any) -> dict[str, str]:
        ids = tuple(group.group_id for name in groups if (group := find_group(name)) is not None)
        policy = Policy("p", "allow", ids, (f"com.cloudflare.api.account.{main}",))
        spec, holder = user_tokens.TokenSpec("x", (policy,), **fields), user_tokens.TokenOwner("user", main, user_id)
        return bearer((await user_tokens.create(database, PEPPER, holder, spec)).secret)

    async def member(role: Any) -> tuple[str, dict[str, str]]:
        made = await users.create(database, PEPPER, f"{role}@example.com")
        await users.join(database, made.user.user_id, main, role=role)
        return made.user.user_id, {"x-auth-email": made.user.email, "x-auth-key": made.global_key}

    viewer_id, viewer = await member("viewer")
    developer_id, developer = await member("developer")
    _, administrator = await member("administrator")
    ai_read, manage = ("Workers AI Read",), ("Workers AI Write", *MANAGEMENT)
    here, elsewhere = AddressCondition(within=("203.0.113.0/24",)), AddressCondition(within=("192.0.2.0/24",))
    not_here = AddressCondition(not_within=("203.0.113.9/32",))
    sees = READS | {READ_TOKENS, NEW_ACCOUNT} | KEEPS_OWN | AS_USER
    secrets = tenants.secrets
    good = secrets["good"]
    later = datetime.now(UTC) + timedelta(hours=1)
    return [
        without("none", {}),
        without("an empty token", bearer("")),
        without("no token's text", bearer("letmein")),
        without("another scheme", {"authorization": "Basic YTpi"}),
        without("a token in a cookie", {"cookie": f"token={good}; Authorization=Bearer {good}"}),
        without("a token in the query", {}, query=f"api_token={good}&authorization=Bearer+{good}"),
        without("a key without its email", {"x-auth-key": secrets["global key"]}),
        without("forwarded by oneself", {"x-forwarded-user": "admin", "x-hearth-account": main}),
        without("two keys", {"authorization": f"Bearer {good}", "Authorization": f"Bearer {good}"}, REPEATED),
        without("an altered token", bearer(good[:-1] + ("0" if good[-1] != "0" else "1")), UNKNOWN),
        without("a token cut short", bearer(good[:-5]), UNKNOWN),
        without("a revoked token", bearer(secrets["revoked"]), UNKNOWN),
        without("a service token", bearer(service_token()), UNKNOWN),
        Credential("a service key", {"x-auth-user-service-key": "v1.0-abc"}, NOTHING, UNKNOWN, UNKNOWN),
        without("a wrong global key", {"x-auth-email": "ada@example.com", "x-auth-key": "cfk_" + "0" * 46}, UNKNOWN),
        Credential("expired", bearer(secrets["expired"]), frozenset({VERIFY_USER}), UNKNOWN),
        Credential("disabled", bearer(secrets["disabled"]), frozenset({VERIFY_USER}), UNKNOWN),
        Credential("not yet", await held(*ai_read, not_before=later), frozenset({VERIFY_USER}), UNKNOWN),
        without("outside", await held(*ai_read, condition=elsewhere), OUTSIDE),
        without("outside the allowed network", await held(*ai_read, condition=not_here), OUTSIDE),
        Credential("inside", await held(*ai_read, condition=here), RUNS | AS_USER),
        Credential("other account", bearer(secrets["other"]), frozenset({OWN_RUN}) | AS_USER),
        Credential(
            "of a blocked account", bearer(secrets["blocked"]), frozenset({VERIFY_USER}), FORBIDDEN,
            own_run_refusal=BLOCKED, user_refusal=BLOCKED,
        ),
        *[Credential(name, await token(name), opens | AS_USER) for name, opens in GROUPS.items()],
        Credential("management", await token(*MANAGEMENT), WRITES | KEEPS | KEEPS_OWN | AS_USER),
        Credential("account's own", await token("Workers AI Read", kind="account"), RUNS | {VERIFY_ACCOUNT}),
        Credential(
            "account's own manager", await token("Account API Tokens Write", kind="account"), KEEPS | {VERIFY_ACCOUNT}
        ),
        Credential("administrator", administrator, EVERYTHING - {OWN_RUN}),
        Credential("developer", developer, AS_MEMBER | {RUN, WRITE_AI}),
        Credential("viewer", viewer, AS_MEMBER),
        # On the account, a member's token grants what the member's role allows; on the user's own routes, it acts as
        # the user.
        Credential("a viewer's token", await held(*manage, user_id=viewer_id), sees),
        Credential("a developer's token", await held(*manage, user_id=developer_id), sees | RUNS | {WRITE_AI}),
    ]  # fmt: skip


class App:
    """The gateway's app with a marker as the handler of every route that does not check credentials itself."""

    def __init__(self, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
        async def reached(_services: Services, _request: Any) -> Response:
            return Response(b'{"errors":[{"code":0}]}')

        routes = [
            route
            if isinstance(route.endpoint, Endpoint) or TABLE.get((route.method, route.path)) in JUDGES_ITSELF
            else replace(route, endpoint=reached)
            for route in ROUTES
        ]
        monkeypatch.setattr(gateway_app, "ROUTES", routes)
        self._app = gateway_app.build_app(services)

    async def ask(self, method: str, path: str, credential: Credential, body: bytes = b"") -> tuple[int, int]:
        """Return status and code, or REACHED for every response other than a credential error."""
        names = [*credential.headers]
        # Without a valid topic the response ends; the caller is authorized before the topics are read.
        query = credential.query + ("&topics=none" if path == "/client/v4/events" else "")
        headers = [(name.lower().encode(), credential.headers[name].encode()) for name in names]
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "headers": [(b"host", b"gateway"), *headers],
            "client": ("203.0.113.9", 5), "hearth.connection": Unconnected(), "hearth.request_cycle": Unconnected(),
        }  # fmt: skip
        said: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        await self._app(scope, receive, send)
        status = said[0]["status"]
        text = b"".join(message.get("body", b"") for message in said[1:])
        assert status < 500 or path == "/readyz", (method, path, text)
        if status not in (400, 401, 403):
            return REACHED
        if method == "HEAD":  # a HEAD response may have no body
            return status, 0
        code = json.loads(text)["errors"][0]["code"]
        is_about_credentials = status != 400 or code == 9106 or b"Authorization header" in text
        return (status, code) if is_about_credentials else REACHED


class Unconnected:
    """Placeholder for the client connection, which does not exist without a server."""

    def take_body(self) -> None: ...

    def write_response(self, _status: int, _headers: Any, _body: bytes) -> bool:
        return False

    def write_chunk(self, _data: bytes) -> bool:
        return False

    def on_disconnect(self, _callback: Any) -> None: ...

    def mark_authenticated(self, party: str) -> None: ...

    def abort(self) -> None: ...


def settings_of(sqlite_url: str, folder: Path, **environ: str) -> GatewaySettings:
    return read_settings(
        GatewaySettings,
        {
            "DATABASE_URL": sqlite_url,
            "REDIS_URL": f"unix://{folder}/nowhere",
            "HEARTH_SPOOL_DIR": str(folder / "spool"),
            "HEARTH_TOKEN_PEPPER": PEPPER.hex(),
            "HEARTH_CACHE_SECRET": "02" * 32,
            **service_keys().environ("gateway/gateway"),
            "HEARTH_ACCESS_LOG": "0",
            **environ,
        },
    )


def filled(path: str, account_id: str) -> str:
    values = {"account_id": account_id, "model...": PARROT, "membership_id": "0" * 32}
    for name in re.findall(r"{(\w+_id)}", path.replace("{account_id}", "").replace("{membership_id}", "")):
        values[name] = "0" * 32
    for name, value in values.items():
        path = path.replace("{" + name + "}", value)
    return path


def test_permission_table_matches_the_routes():
    assert {(route.method, route.path) for route in ROUTES} == TABLE.keys()


def test_openapi_description_requires_a_credential_wherever_the_table_does():
    described = openapi.document(ROUTES)["paths"]
    for (method, path), what in TABLE.items():
        security = described[path.replace("...}", "}")][method.lower()]["security"]
        assert (security == []) == (what == ANYBODY), (method, path)


async def test_each_credential_grants_exactly_its_routes(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tenants = await seed(sqlite_url)
    wrong = []
    async with open_services(settings_of(sqlite_url, tmp_path)) as services:
        app = App(services, monkeypatch)
        everybody = await credentials(services.database, tenants)
        for credential in everybody:
            for (method, path), what in TABLE.items():
                found = await app.ask(method, filled(path, tenants.account_id), credential)
                if found != credential.expected(what):
                    wrong.append(f"{credential.name}: {method} {path} said {found}, not {credential.expected(what)}")
    assert not wrong, "\n".join(wrong)
    assert len({credential.name for credential in everybody}) == len(everybody) >= 30
    figure = f"{len(TABLE)} routes × {len(everybody)} credentials: exactly the cells that should open do"
    figures.record("P21", figure, f"pytest {Path(__file__).name}")


def provider_settings() -> dict[str, str]:
    return {
        "HEARTH_OIDC_ISSUER": "https://login.example",
        "HEARTH_OIDC_CLIENT_ID": "hearth",
        "HEARTH_OIDC_REDIRECT_URL": "https://hearth.example/admin/callback",
        "HEARTH_OIDC_ROLES": "x=viewer",
    }


async def session_owners(database: Database, account_id: str) -> dict[str, tuple[SessionOwner, frozenset[str]]]:
    """Return the owner of a session for each kind of person, and the permissions of the session on the account."""

    async def user(name: str, role: Any = None, account_role: Any = None, id_: str = account_id) -> SessionOwner:
        user_id = await operators.add(database, f"{name}@example.org", role=role, password_hash=None)
        if account_role is not None:
            await users.join(database, user_id, id_, role=account_role)
        return SessionOwner(user_id=user_id)

    other = (await accounts.create(database, "another")).account_id
    manages, sees = WRITES | KEEPS, READS | {READ_TOKENS}
    reads_all = frozenset({READ_PLATFORM, EVENTS})
    changes_all = reads_all | {WRITE_PLATFORM}
    own = frozenset({USER, NEW_ACCOUNT}) | KEEPS_OWN
    member = sees | own | {ACCOUNTS}
    return {
        "OpenID administrator": (
            SessionOwner("operator:1", "Ann", role="administrator"), manages | changes_all | {NEW_ACCOUNT},
        ),
        "OpenID viewer": (SessionOwner("operator:2", "Bob", role="viewer"), sees | reads_all),
        "platform administrator": (await user("pa", "administrator"), manages | own | changes_all),
        "platform viewer": (await user("pv", "viewer"), sees | own | reads_all),
        "platform administrator of another account": (
            await user("po", "administrator", "administrator", other), manages | own | changes_all,
        ),
        "platform viewer and developer": (
            await user("pd", "viewer", "developer"), member | reads_all | {RUN, WRITE_AI},
        ),
        "account administrator": (
            await user("aa", None, "administrator"), manages | own | {ACCOUNTS, RUN, WRITE_AI},
        ),
        "account developer": (await user("ad", None, "developer"), member | {RUN, WRITE_AI}),
        "account viewer": (await user("av", None, "viewer"), member),
        "administrator of another account": (await user("ao", None, "administrator", other), own | {ACCOUNTS}),
    }  # fmt: skip


async def test_each_browser_session_grants_exactly_its_routes(
    sqlite_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Sessions of operators of an OpenID provider, and of users with every role. Nobody runs models by a role on the
    platform."""
    tenants = await seed(sqlite_url)
    settings = settings_of(sqlite_url, tmp_path, REDIS_URL=redis_url, **provider_settings())
    wrong = []
    async with open_services(settings) as services:
        app = App(services, monkeypatch)
        sessions = WebSessions(services.ephemeral, settings.cache_secret)
        for name, (owner, opens) in (await session_owners(services.database, tenants.account_id)).items():
            cookie = await sessions.open(owner)
            found = await sessions.find(cookie)
            assert found is not None
            headers = {"cookie": f"__Host-hearth-session={cookie}", "sec-fetch-site": "same-origin"}
            credential = Credential(name, {**headers, "x-hearth-csrf": found.csrf_token}, opens | {SESSION})
            for (method, path), what in TABLE.items():
                if path in ("/admin/sign-in", "/admin/sign-out"):  # need a provider, or end the session
                    continue
                said = await app.ask(method, filled(path, tenants.account_id), credential)
                expected = MALFORMED if what in (VERIFY_USER, VERIFY_ACCOUNT) else credential.expected(what)
                if said != expected:  # tokens are verified in headers only
                    wrong.append(f"{name}: {method} {path} said {said}, not {expected}")
                if method != "GET" and what not in (VERIFY_USER, VERIFY_ACCOUNT, SIGN_IN):
                    unprotected = Credential(name, headers, NOTHING)
                    if await app.ask(method, filled(path, tenants.account_id), unprotected) != CROSS_SITE:
                        wrong.append(f"{name}: {method} {path} works without the CSRF token")
    assert not wrong, "\n".join(wrong)


async def test_token_grants_no_access_to_other_accounts_or_path_spellings(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Covers a valid token on other accounts with similar ids, a blocked account's token on its own account, and HEAD
    instead of GET."""
    tenants = await seed(sqlite_url)
    async with open_services(settings_of(sqlite_url, tmp_path)) as services:
        app = App(services, monkeypatch)
        keeper = Credential("keeper", bearer(tenants.secrets["keeper"]), NOTHING)
        blocked = Credential("blocked", bearer(tenants.secrets["blocked"]), NOTHING)
        nobody = without("none", {})
        for (method, path), what in TABLE.items():
            if "{account_id}" in path and what != VERIFY_ACCOUNT:
                for account_id in (tenants.other_account_id, tenants.blocked_account_id, "f" * 32):
                    assert await app.ask(method, filled(path, account_id), keeper) == FORBIDDEN, (method, path)
                expected = FORBIDDEN if what in (READ_PLATFORM, WRITE_PLATFORM) else BLOCKED
                assert await app.ask(method, filled(path, tenants.blocked_account_id), blocked) == expected, path
            if method == "GET" and what != ANYBODY:
                status = 401 if what == SESSION else 400
                assert await app.ask("HEAD", filled(path, tenants.account_id), nobody) == (status, 0), path
