"""Sign-in of operators with a real OpenID provider: roles, forged id tokens, stolen cookies, and requests from other
sites.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey
from redis import Redis

from gateway import app as gateway_app
from gateway.management import oidc
from gateway.services import Services, open_services
from storage.ephemeral import Ephemeral
from telemetry.settings import SettingError
from tenants import accounts
from tenants.audit import audit_log as audit
from tenants.credentials.web_sessions import IDLE_S, LIFE_S, SessionOwner, WebSessions
from tests.fakes.oidc_provider import CLIENT_ID, CLIENT_SECRET, PUBLISHED_SECRET, Claims, OidcProvider
from tests.gateway.process import PARROT
from tests.gateway.test_who_may import Unconnected, settings_of
from tests.tenants.hand_clock import HandClock
from tests.waiting import PATIENCE_S

ORIGIN = "https://hearth.example"
API = "/client/v4"


@pytest.fixture(scope="module")
def _provider() -> Iterator[OidcProvider]:
    running = OidcProvider().start()
    yield running
    running.stop()


@pytest.fixture
def provider(_provider: OidcProvider) -> OidcProvider:
    """A provider that sends valid id tokens for Ann, who is in the group `platform`."""
    _provider.forge, _provider.describe, _provider.authorization_requests = None, {}, []
    _provider.person = {"sub": "ann-1", "name": "Ann", "groups": ["staff", "platform"]}
    return _provider


def oidc_environ(provider: OidcProvider, **changed: str) -> dict[str, str]:
    return {
        "HEARTH_OIDC_ISSUER": provider.issuer,
        "HEARTH_OIDC_CLIENT_ID": CLIENT_ID,
        "HEARTH_OIDC_CLIENT_SECRET": CLIENT_SECRET,
        "HEARTH_OIDC_REDIRECT_URL": f"{ORIGIN}/admin/callback",
        "HEARTH_OIDC_ROLES": "platform=administrator,auditors=viewer",
        **changed,
    }


@dataclass
class SignInSite:
    """The gateway's app in this process, and browsers that use it."""

    services: Services
    provider: OidcProvider
    browsers: contextlib.AsyncExitStack

    async def browser(self) -> httpx.AsyncClient:
        app = gateway_app.build_app(self.services)

        async def connected(scope: Any, receive: Any, send: Any) -> None:
            scope["hearth.connection"] = scope["hearth.request_cycle"] = Unconnected()
            await app(scope, receive, send)

        transport = httpx.ASGITransport(app=connected)
        return await self.browsers.enter_async_context(httpx.AsyncClient(transport=transport, base_url=ORIGIN))

    async def redirect_back(self, browser: httpx.AsyncClient) -> str:
        """Start a sign-in and return the URL to which the provider redirects the browser."""
        begun = await browser.get("/admin/sign-in")
        assert begun.status_code == 302, begun.text
        query = {name: values[0] for name, values in parse_qs(urlsplit(begun.headers["location"]).query).items()}
        return self.provider.authorize(query)

    async def signed_in(self) -> httpx.AsyncClient:
        """Return a browser with a session, which sends requests from our own pages."""
        browser = await self.browser()
        response = await browser.get(await self.redirect_back(browser))
        assert response.status_code == 200, response.text
        session = (await browser.get("/admin/session")).json()["result"]
        browser.headers.update({"sec-fetch-site": "same-origin", "x-hearth-csrf": session["csrf_token"]})
        return browser


@pytest.fixture
async def site(provider: OidcProvider, sqlite_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[SignInSite]:
    settings = settings_of(sqlite_url, tmp_path, REDIS_URL=redis_url, **oidc_environ(provider))
    async with open_services(settings) as services, contextlib.AsyncExitStack() as browsers:
        yield SignInSite(services, provider, browsers)


def error_of(response: httpx.Response) -> tuple[int, int]:
    return response.status_code, response.json()["errors"][0]["code"]


async def test_operator_manages_every_account_and_cannot_run_models(site: SignInSite):
    """The whole session, from the redirect to the sign-out, with audit entries for both."""
    made = await accounts.create(site.services.database, "acme")
    browser = await site.signed_in()
    request = site.provider.authorization_requests[-1]
    assert (request["response_type"], request["code_challenge_method"]) == ("code", "S256")
    assert len(request["code_challenge"]) == 43
    assert min(len(request["state"]), len(request["nonce"])) >= 43
    me = (await browser.get("/admin/session")).json()["result"]
    assert (me["name"], me["kind"], me["platform_role"]) == ("Ann", "operator", "administrator")
    assert (me["user_id"], me["memberships"]) == (None, [])
    account = f"{API}/accounts/{made.account_id}"
    assert [row["id"] for row in (await browser.get(f"{API}/accounts")).json()["result"]] == [made.account_id]
    changed = await browser.put(account, json={"name": "ACME"})
    assert (changed.status_code, changed.json()["result"]["name"]) == (200, "ACME")
    assert (await browser.get(f"{account}/tokens")).status_code == 200
    for path in (f"{account}/ai/run/{PARROT}", f"{account}/ai/v1/chat/completions"):
        assert error_of(await browser.post(path, json={"prompt": "x"})) == (403, 10000), "an operator ran a model"
    assert error_of(await browser.get(f"{account}/ai/models/search")) == (403, 10000)
    assert error_of(await browser.get(f"{API}/user/tokens")) == (403, 10000)
    assert error_of(await browser.get(f"{API}/accounts/{'f' * 32}")) == (404, 7003)
    cookies = dict(browser.cookies)
    out = await browser.post("/admin/sign-out")
    assert out.json()["result"]["provider_sign_out"] == f"{site.provider.issuer}/bye"
    browser.cookies = cookies  # a copy of the cookies from before the sign-out
    assert error_of(await browser.get(f"{API}/accounts")) == (401, 10000)
    entries = await audit.list_recent(site.services.database, "")
    assert [(entry.action, entry.detail) for entry in entries] == [
        ("operator.sign_out", "administrator"),
        ("operator.sign_in", "administrator"),
    ]
    assert entries[0].actor.startswith("operator:")
    (renamed, *_) = await audit.list_recent(site.services.database, made.account_id)
    assert renamed.actor == entries[0].actor


async def test_cookies_are_hidden_from_scripts_and_other_sites(site: SignInSite):
    browser = await site.browser()
    begun = await browser.get("/admin/sign-in")
    attempt = begun.headers["set-cookie"]
    query = {name: values[0] for name, values in parse_qs(urlsplit(begun.headers["location"]).query).items()}
    assert query["state"] not in attempt
    response = await browser.get(site.provider.authorize(query))
    session, over = response.headers.get_list("set-cookie")
    for cookie in (attempt, session, over):
        assert cookie.startswith("__Host-")
        assert {"Path=/", "Secure", "HttpOnly"} <= {part.strip() for part in cookie.split(";")}
    assert session.endswith("SameSite=Strict")
    assert "SameSite=Lax; Max-Age=0" in over
    assert response.headers["cache-control"] == "no-store"
    assert "script" not in response.text
    with contextlib.closing(Redis.from_url(site.services.settings.redis_url)) as redis:
        dump = b"".join(key + (redis.get(key) or b"") for key in redis.keys("*session*"))
    assert dump
    assert session.partition("=")[2][:64].encode() not in dump


def signed_by_another_key(claims: Claims) -> str:
    key = ECKey.generate_key("P-256", {"kid": "key-1"})
    return jwt.encode({"alg": "ES256", "kid": "key-1"}, claims, key)


def segment(value: Claims) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def unsigned(claims: Claims) -> str:
    return f"{segment({'alg': 'none', 'kid': 'key-1'})}.{segment(claims)}."


def with_the_public_key_as_secret(provider: OidcProvider) -> Callable[[Claims], str]:
    def forge(claims: Claims) -> str:
        text = f"{segment({'alg': 'HS256', 'kid': 'key-1'})}.{segment(claims)}"
        signature = hmac.digest(provider.key.as_pem(private=False), text.encode(), hashlib.sha256)
        return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    return forge


def forgeries(provider: OidcProvider) -> dict[str, Callable[[Claims], str]]:
    """Return functions that forge id tokens, by what is wrong with them."""
    now_s = int(time.time())
    unknown_key = ECKey.generate_key("P-256", {"kid": "key-9"})
    jwk = unknown_key.as_dict(private=False)

    def claims(**changed: Any) -> Callable[[Claims], str]:
        def forge(right: Claims) -> str:
            return provider.signed({name: v for name, v in {**right, **changed}.items() if v is not None})

        return forge

    def changed_after(right: Claims) -> str:
        head, _, signature = provider.signed(right).split(".")
        return f"{head}.{segment({**right, 'sub': 'root'})}.{signature}"

    everybody = OctKey.import_key({"kty": "oct", "k": PUBLISHED_SECRET})
    return {
        "unsigned": unsigned,
        "HS256 with the public key": with_the_public_key_as_secret(provider),
        "HS256 with a secret from the key list": lambda c: jwt.encode({"alg": "HS256"}, c, everybody),
        "signed by another key": signed_by_another_key,
        "unknown key": lambda c: jwt.encode({"alg": "ES256", "kid": "key-9"}, c, unknown_key),
        "key in the header": lambda c: jwt.encode({"alg": "ES256", "kid": "key-9", "jwk": jwk}, c, unknown_key),
        "key URL in the header": lambda c: provider.signed(c, jku="https://example.com/keys"),
        "crit": lambda c: f"{segment({'alg': 'ES256', 'kid': 'key-1', 'crit': ['x']})}.{segment(c)}.AAAA",
        "another algorithm": lambda c: f"{segment({'alg': 'RS256', 'kid': 'key-1'})}.{segment(c)}.AAAA",
        "changed after signing": changed_after,
        "no token": lambda _: "hello",
        "too large": claims(extra="x" * 20_000),
        "another issuer": claims(iss="https://example.com"),
        "no issuer": claims(iss=None),
        "another audience": claims(aud="other"),
        "another audience, used by us": claims(aud="other", azp=CLIENT_ID),
        "no audience": claims(aud=None),
        "for others too": claims(aud=[CLIENT_ID, "other"]),
        "for others too, used by one": claims(aud=[CLIENT_ID, "other"], azp="other"),
        "used by another": claims(azp="other"),
        "expired": claims(exp=now_s - 61),
        "no end": claims(exp=None),
        "end as a text": claims(exp=str(now_s + 60)),
        "issued in the future": claims(iat=now_s + 3600),
        "not yet valid": claims(nbf=now_s + 3600),
        "another nonce": claims(nonce="x" * 43),
        "no nonce": claims(nonce=None),
        "no subject": claims(sub=None),
        "an empty subject": claims(sub=""),
        "a subject that is a list": claims(sub=["ann-1"]),
        "of another access token": claims(at_hash="AAAAAAAAAAAAAAAAAAAAAA"),
    }


async def test_forged_id_tokens_are_rejected(site: SignInSite, caplog: pytest.LogCaptureFixture):
    wrong = []
    before, began_s = site.provider.num_key_requests, time.monotonic()
    for name, forge in forgeries(site.provider).items():
        site.provider.forge = forge
        browser = await site.browser()
        response = await browser.get(await site.redirect_back(browser))
        if error_of(response) != (401, 10002) or "__Host-hearth-session" in browser.cookies:
            wrong.append((name, response.status_code, response.text))
    assert wrong == []
    num_fetches = site.provider.num_key_requests - before
    most = 1 + (time.monotonic() - began_s) // oidc.MIN_KEY_REFRESH_S
    assert num_fetches <= most, "the key set was fetched too often"
    logged = "".join(str(record.__dict__) for record in caplog.records)
    assert "sign-in failed" in logged
    assert "eyJ" not in logged
    site.provider.forge = None
    await site.signed_in()


async def test_new_key_of_the_provider_is_fetched(site: SignInSite, monkeypatch: pytest.MonkeyPatch):
    await site.signed_in()
    monkeypatch.setattr(oidc, "MIN_KEY_REFRESH_S", 0.0)
    old = site.provider.key
    site.provider.key = ECKey.generate_key("P-256", {"kid": "key-2", "use": "sig", "alg": "ES256"})
    try:
        site.provider.forge = lambda claims: site.provider.signed(claims, kid="key-2")
        await site.signed_in()
    finally:
        site.provider.key = old


async def test_redirect_is_accepted_once_and_only_in_the_browser_that_started_it(site: SignInSite):
    browser_a, browser_b = await site.browser(), await site.browser()
    failed = (401, 10002)
    theirs = await site.redirect_back(browser_b)
    assert error_of(await browser_a.get(theirs)) == failed, "accepted a sign-in that this browser did not start"
    await site.redirect_back(browser_a)
    assert error_of(await browser_a.get(theirs)) == failed, "the state of another browser"
    ours = await site.redirect_back(browser_a)
    for altered in (
        ours.replace("state=", "state=x"),
        ours.replace("code=", "code=x"),
        ours + "&state=y",
        ours.replace("iss=http", "iss=https"),
        ours.partition("?")[0] + "?error=access_denied&" + ours.partition("state=")[1] + ours.partition("state=")[2],
        ours.partition("?")[0],
    ):
        assert error_of(await browser_a.get(altered)) == failed, altered
    cookies = dict(browser_a.cookies)
    assert (await browser_a.get(ours)).status_code == 200
    browser_a.cookies = cookies
    assert error_of(await browser_a.get(ours)) == failed, "a code was accepted twice"


@pytest.mark.parametrize(
    ("claim", "roles", "person", "role"),
    [
        ("groups", "a=administrator,b=viewer", {"groups": ["b", "x"]}, "viewer"),
        ("groups", "a=administrator,b=viewer", {"groups": ["b", "a"]}, "administrator"),
        ("groups", "a=administrator", {"groups": "a"}, "administrator"),
        ("realm.roles", "a=viewer", {"realm": {"roles": ["a"]}}, "viewer"),
        ("https://x/r", "a=viewer", {"https://x/r": ["a"]}, "viewer"),
        ("email", "a@x.org=viewer", {"email": "a@x.org", "email_verified": True}, "viewer"),
        ("email", "a@x.org=viewer", {"email": "a@x.org"}, None),
        ("email", "a@x.org=viewer", {"email": "a@x.org", "email_verified": "true"}, None),
        ("groups", "a=administrator", {}, None),
        ("groups", "a=administrator", {"groups": ["A", "aa", 1, None, {"a": "a"}]}, None),
        ("groups", "a=administrator", {"groups": {"a": True}}, None),
        ("realm.roles", "a=viewer", {"realm": "roles"}, None),
    ],
)
def test_role_is_read_from_the_configured_claim(claim: str, roles: str, person: Claims, role: str | None):
    from gateway.management.operator_settings import operator_roles_in
    from gateway.management.operators import role_of

    assert role_of({"sub": "a", **person}, claim, operator_roles_in(roles)) == role


async def test_user_without_a_role_is_rejected_and_a_viewer_changes_nothing(site: SignInSite):
    site.provider.person = {"sub": "eve", "groups": ["staff"]}
    browser = await site.browser()
    assert error_of(await browser.get(await site.redirect_back(browser))) == (403, 10003)
    assert "__Host-hearth-session" not in browser.cookies
    site.provider.person = {"sub": "bob", "name": "<b>Bob</b>", "groups": ["auditors"]}
    made = await accounts.create(site.services.database, "acme")
    viewer = await site.signed_in()
    assert (await viewer.get("/admin/session")).json()["result"]["name"] == "bBobb"
    account = f"{API}/accounts/{made.account_id}"
    assert (await viewer.get(f"{account}/audit_logs")).status_code == 200
    for method, path in (("PUT", account), ("DELETE", account), ("POST", f"{account}/tokens")):
        assert error_of(await viewer.request(method, path, json={"name": "x"})) == (403, 10000)


CROSS = (403, 10004)


async def test_requests_from_other_sites_are_rejected(site: SignInSite):
    made = await accounts.create(site.services.database, "acme")
    path = f"{API}/accounts/{made.account_id}"
    browser = await site.signed_in()
    token = browser.headers.pop("x-hearth-csrf")
    del browser.headers["sec-fetch-site"]
    refused: list[dict[str, str]] = [
        {},
        {"x-hearth-csrf": token},
        {"sec-fetch-site": "same-origin"},
        {"origin": ORIGIN},
        {"sec-fetch-site": "same-origin", "x-hearth-csrf": "0" * 64},
        {"sec-fetch-site": "cross-site", "x-hearth-csrf": token},
        {"sec-fetch-site": "same-site", "x-hearth-csrf": token},
        {"sec-fetch-site": "none", "x-hearth-csrf": token},
        {"sec-fetch-site": "same-origin", "origin": "https://evil.example", "x-hearth-csrf": token},
        {"origin": "https://evil.example", "x-hearth-csrf": token},
        {"origin": "null", "x-hearth-csrf": token},
        {"origin": "http://hearth.example", "x-hearth-csrf": token},
    ]
    for headers in refused:
        for method, where in (("PUT", path), ("DELETE", path), ("POST", f"{path}/tokens"), ("POST", "/admin/sign-out")):
            response = await browser.request(method, where, json={"name": "x"}, headers=headers)
            assert error_of(response) == CROSS, (method, headers)
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
        response = await browser.get("/admin/session", headers=headers)
        assert error_of(response) == CROSS
        assert "access-control-allow-credentials" not in response.headers
    for headers in ({"sec-fetch-site": "same-origin"}, {"origin": ORIGIN}):
        response = await browser.put(path, json={"name": "y"}, headers={**headers, "x-hearth-csrf": token})
        assert response.status_code == 200
    other = await site.signed_in()
    response = await browser.put(path, json={"name": "z"}, headers={**other.headers})
    assert error_of(response) == CROSS, "another session's token"


async def test_altered_cookies_are_rejected(site: SignInSite):
    browser = await site.signed_in()
    right = browser.cookies["__Host-hearth-session"]
    other_browser = await site.browser()
    for cookie in (
        "0" * 64 + "." + right[65:],
        right[:64] + "." + "0" * 64,
        right[:64],
        right.upper(),
        right + "0",
        "x",
        f"{right}; __Host-hearth-session={right}",
    ):
        response = await other_browser.get(f"{API}/accounts", headers={"cookie": f"__Host-hearth-session={cookie}"})
        assert response.status_code in (400, 401), cookie
    both = {"cookie": f"__Host-hearth-session={right}", "authorization": "Bearer nothing"}
    assert error_of(await other_browser.get(f"{API}/accounts", headers=both)) == (400, 9106), (
        "the cookie was used despite a credential"
    )
    again = await site.signed_in()
    assert again.cookies["__Host-hearth-session"] != right


OWNER = SessionOwner("operator:1", "Ann", role="viewer")


async def test_sessions_expire_and_altered_records_are_rejected(redis_url: str):
    """After half an hour without use, after half a day in any case, and if the record in Redis was changed."""
    clock, ephemeral = HandClock(), Ephemeral.connect(redis_url, timeout_s=PATIENCE_S)
    sessions = WebSessions(ephemeral, b"s" * 32, clock)
    cookie = await sessions.open(OWNER)
    assert await WebSessions(ephemeral, b"t" * 32, clock).find(cookie) is None
    clock.pass_time(IDLE_S - 1)
    assert await sessions.find(cookie) is not None
    clock.pass_time(IDLE_S + 1)
    assert await sessions.find(cookie) is None
    worn = await sessions.open(OWNER)
    for _ in range(int(LIFE_S / 1700)):
        clock.pass_time(1700)
        assert await sessions.find(worn) is not None
    clock.pass_time(1700)
    assert await sessions.find(worn) is None
    fresh = await sessions.open(OWNER)
    with contextlib.closing(Redis.from_url(redis_url)) as redis:
        keys: list[bytes] = redis.keys("web-session:*")  # type: ignore[assignment]
        for key in keys:
            redis.set(key, redis.get(key).replace(b"viewer", b"administrator"))  # type: ignore[union-attr]
    assert await sessions.find(fresh) is None
    await ephemeral.close()


async def test_invalid_discovery_document_is_rejected(site: SignInSite):
    for lie in (
        {"issuer": "https://example.com"},
        {"token_endpoint": "http://example.com/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": 5},
        {"end_session_endpoint": "javascript:alert(1)"},
    ):
        site.provider.describe = lie
        assert error_of(await (await site.browser()).get("/admin/sign-in")) == (503, 11002), lie
    site.provider.describe = {}
    await site.signed_in()


async def test_routes_of_the_provider_do_not_exist_without_a_provider(sqlite_url: str, tmp_path: Path):
    async with (
        open_services(settings_of(sqlite_url, tmp_path)) as services,
        contextlib.AsyncExitStack() as browsers,
    ):
        browser = await SignInSite(services, None, browsers).browser()  # type: ignore[arg-type]
        for path in ("sign-in", "callback"):
            assert error_of(await browser.get(f"/admin/{path}")) == (400, 7000)
        assert (await browser.get("/admin/sign-in-methods")).json()["result"] == {"password": True, "oidc": False}


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"HEARTH_OIDC_CLIENT_ID": ""}, "HEARTH_OIDC_CLIENT_ID"),
        ({"HEARTH_OIDC_REDIRECT_URL": ""}, "HEARTH_OIDC_REDIRECT_URL"),
        ({"HEARTH_OIDC_ROLES": ""}, "HEARTH_OIDC_ROLES"),
        ({"HEARTH_OIDC_ROLES": "platform=root"}, "HEARTH_OIDC_ROLES"),
        ({"HEARTH_OIDC_ROLES": "platform"}, "HEARTH_OIDC_ROLES"),
        ({"HEARTH_OIDC_ROLES": "people=developer"}, "HEARTH_OIDC_ROLES"),
        ({"HEARTH_OIDC_ISSUER": ""}, "HEARTH_OIDC_ISSUER"),
        ({"HEARTH_OIDC_ISSUER": "http://login.example"}, "HEARTH_OIDC_ISSUER"),
        ({"HEARTH_OIDC_ISSUER": "login.example"}, "HEARTH_OIDC_ISSUER"),
        ({"HEARTH_OIDC_ISSUER": "https://u:p@login.example"}, "HEARTH_OIDC_ISSUER"),
        ({"HEARTH_OIDC_REDIRECT_URL": "https://hearth.example/"}, "HEARTH_OIDC_REDIRECT_URL"),
        ({"HEARTH_OIDC_REDIRECT_URL": "http://hearth.example/admin/callback"}, "HEARTH_OIDC_REDIRECT_URL"),
        ({"HEARTH_OIDC_SCOPES": "profile"}, "HEARTH_OIDC_SCOPES"),
    ],
)
def test_invalid_setting_is_named(tmp_path: Path, provider: OidcProvider, changed: dict, names: str):
    with pytest.raises(SettingError, match=names) as error:
        settings_of("sqlite:///x", tmp_path, **oidc_environ(provider, **changed))
    assert CLIENT_SECRET not in str(error.value)
