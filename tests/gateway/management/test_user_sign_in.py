"""Sign-in of users with a password or a one-time link, their sessions, and who may run models with a session."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from gateway import app as gateway_app
from gateway.services import Services, open_services
from tenants import accounts, operators, users
from tenants.audit import audit_log as audit
from tenants.credentials import passwords, sign_in_attempts
from tenants.credentials.passwords import hash_password
from tenants.credentials.sign_in_attempts import MAX_ATTEMPTS, MAX_ATTEMPTS_FOR_EMAIL, WINDOW_S, SignInAttempts
from tests.gateway.process import PARROT, PEPPER
from tests.gateway.test_who_may import Unconnected, settings_of
from tests.tenants.hand_clock import HandClock

ORIGIN, LOCAL = "https://hearth.example", "http://127.0.0.1:8787"
API = "/client/v4"
EMAIL, PASSWORD = "ann@example.org", "correct horse battery"
FAILED, CROSS, SIGNED_OUT, FORBIDDEN = (401, 10002), (403, 10004), (401, 10000), (403, 10000)
FROM_PAGE = {"sec-fetch-site": "same-origin"}


@dataclass
class Site:
    """The gateway's app in this process, and browsers that use it. Ann has a password and administers an account."""

    services: Services
    browsers: contextlib.AsyncExitStack
    account_id: str
    user_id: str

    async def browser(self, origin: str = ORIGIN) -> httpx.AsyncClient:
        app = gateway_app.build_app(self.services)

        async def connected(scope: Any, receive: Any, send: Any) -> None:
            scope["hearth.connection"] = scope["hearth.request_cycle"] = Unconnected()
            await app(scope, receive, send)

        transport = httpx.ASGITransport(app=connected, client=("203.0.113.9", 5))
        client = httpx.AsyncClient(transport=transport, base_url=origin, headers=FROM_PAGE)
        return await self.browsers.enter_async_context(client)

    async def link(self, **kwargs: Any) -> str:
        return await operators.create_link(self.services.database, PEPPER, self.user_id, **kwargs)

    async def signed_in(self, origin: str = ORIGIN, user_id: str = "") -> httpx.AsyncClient:
        """Return a browser with a session."""
        browser = await self.browser(origin)
        token = await operators.create_link(self.services.database, PEPPER, user_id or self.user_id)
        response = await browser.post("/admin/sign-in/link", json={"token": token})
        assert response.status_code == 200, response.text
        browser.headers["x-hearth-csrf"] = (await browser.get("/admin/session")).json()["result"]["csrf_token"]
        return browser

    async def attempt(self, password: str = PASSWORD, email: str = EMAIL, **headers: str) -> httpx.Response:
        body = {"email": email, "password": password}
        for _ in range(5):  # a store that is slow on a busy machine gives 503
            response = await (await self.browser()).post("/admin/sign-in/password", json=body, headers=headers)
            if response.status_code != 503:
                break
        return response

    async def member(self, role: Any, platform_role: Any = None) -> str:
        name = f"{role}-{platform_role}@example.org"
        user_id = await operators.add(self.services.database, name, role=platform_role, password_hash=None)
        if role is not None:
            await users.join(self.services.database, user_id, self.account_id, role=role)
        return user_id


@pytest.fixture
async def site(sqlite_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    with contextlib.closing(Redis.from_url(redis_url)) as redis:
        for key in redis.keys("sign-in-attempts:*"):  # type: ignore[union-attr]
            redis.delete(key)
    async with (
        open_services(settings_of(sqlite_url, tmp_path, REDIS_URL=redis_url)) as services,
        contextlib.AsyncExitStack() as browsers,
    ):
        account_id = (await accounts.create(services.database, "acme")).account_id
        hashed = hash_password(PASSWORD)
        user_id = await operators.add(services.database, EMAIL, role=None, password_hash=hashed)
        await users.join(services.database, user_id, account_id)
        yield Site(services, browsers, account_id, user_id)


def error_of(response: httpx.Response) -> tuple[int, int]:
    return response.status_code, response.json()["errors"][0]["code"]


async def test_user_signs_in_with_password_manages_the_account_and_signs_out(site: Site):
    browser = await site.browser()
    response = await browser.post("/admin/sign-in/password", json={"email": "Ann@Example.org", "password": PASSWORD})
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    me = (await browser.get("/admin/session")).json()["result"]
    assert (me["name"], me["email"], me["kind"], me["user_id"]) == ("ann", EMAIL, "user", site.user_id)
    assert me["platform_role"] is None
    assert me["memberships"] == [{"account_id": site.account_id, "account_name": "acme", "role": "administrator"}]
    browser.headers["x-hearth-csrf"] = me["csrf_token"]
    renamed = await browser.put(f"{API}/accounts/{site.account_id}", json={"name": "ACME"})
    assert renamed.status_code == 200, renamed.text
    cookies = dict(browser.cookies)
    assert (await browser.post("/admin/sign-out")).json()["result"] == {"provider_sign_out": None}
    browser.cookies = cookies  # type: ignore[assignment]
    assert error_of(await browser.get("/admin/session")) == SIGNED_OUT
    entries = await audit.list_recent(site.services.database, "")
    assert [(entry.actor, entry.action, entry.detail) for entry in entries[:2]] == [
        (site.user_id, "operator.sign_out", ""),
        (site.user_id, "operator.sign_in", "password"),
    ]
    (change, *_) = await audit.list_recent(site.services.database, site.account_id)
    assert (change.actor, change.action) == (site.user_id, "account.update")


async def test_link_signs_in_once_within_ten_minutes(site: Site):
    async def use(token: str) -> tuple[int, int]:
        response = await (await site.browser()).post("/admin/sign-in/link", json={"token": token})
        return (200, 0) if response.status_code == 200 else error_of(response)

    first, second = await site.link(), await site.link()
    assert await use(first) == FAILED, "a newer link replaces it"
    assert await use(second[:-1]) == FAILED
    assert await use(second) == (200, 0)
    assert await use(second) == FAILED, "used twice"
    clock = HandClock()
    fresh = await site.link(clock=clock)
    clock.pass_time(operators.LINK_LIFE.total_seconds() - 1)
    stale = await operators.use_link(site.services.database, PEPPER, "cfl_" + "0" * 40, clock=clock)
    assert stale is None
    assert await operators.use_link(site.services.database, PEPPER, fresh, clock=clock) is not None
    late = await site.link(clock=clock)
    clock.pass_time(operators.LINK_LIFE.total_seconds())
    assert await operators.use_link(site.services.database, PEPPER, late, clock=clock) is None


async def test_link_is_stored_only_as_a_hash(site: Site, sqlite_url: str):
    token = await site.link()
    files = Path(sqlite_url.removeprefix("sqlite://")).parent.glob("hearth.db*")
    assert not any(token.encode() in file.read_bytes() for file in files)


async def test_wrong_password_and_unknown_email_get_the_same_response(site: Site):
    wrong, unknown = await site.attempt("wrong password"), await site.attempt(email="nobody@example.org")
    assert error_of(wrong) == error_of(unknown) == FAILED
    assert wrong.json()["errors"] == unknown.json()["errors"]
    assert "set-cookie" not in wrong.headers
    passwordless = await site.member("viewer")
    user = await operators.find(site.services.database, passwordless)
    assert user is not None
    assert error_of(await site.attempt("", email=user.email)) == FAILED


async def test_unknown_email_is_compared_with_a_hash_too(site: Site, monkeypatch: pytest.MonkeyPatch):
    """The time of a response must not say whether a user exists; comparing hashes is what takes the time."""
    compared: list[str | None] = []
    real = passwords._matches

    def matches(password: str, password_hash: str | None) -> bool:
        compared.append(password_hash)
        return real(password, password_hash)

    monkeypatch.setattr(passwords, "_matches", matches)
    await site.attempt("wrong password")
    await site.attempt(email="nobody@example.org")
    assert [text is None for text in compared] == [False, True]


async def test_sixth_attempt_has_to_wait_even_with_the_right_password(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sign_in_attempts, "WINDOW_S", 10**9)  # no new window begins during the test
    for _ in range(MAX_ATTEMPTS):
        assert error_of(await site.attempt("wrong password")) == FAILED
    limited = await site.attempt()
    assert error_of(limited) == (429, 971)
    assert int(limited.headers["retry-after"]) > 0


async def test_attempts_are_limited_by_email_and_by_address(site: Site):
    clock = HandClock()
    attempts = SignInAttempts(site.services.ephemeral, clock)
    for number in range(MAX_ATTEMPTS_FOR_EMAIL):
        assert await attempts.count("a@x", f"192.0.2.{number}") == 0
    assert await attempts.count("A@x", "192.0.2.99") > 0, "one email from many addresses"
    for number in range(MAX_ATTEMPTS):
        assert await attempts.count(f"{number}@x", f"2001:db8::{number}") == 0
    assert await attempts.count("new@x", "2001:db8::ffff") > 0, "many emails from one network"
    clock.pass_time(WINDOW_S)
    assert await attempts.count("a@x", "2001:db8::1") == 0


async def test_attempts_of_one_address_do_not_lock_the_owner_of_an_email_out(site: Site):
    attempts = SignInAttempts(site.services.ephemeral, HandClock())
    waits = [await attempts.count("a@x", "192.0.2.1") for _ in range(2 * MAX_ATTEMPTS_FOR_EMAIL)]
    assert [wait_s == 0 for wait_s in waits] == [True] * MAX_ATTEMPTS + [False] * (len(waits) - MAX_ATTEMPTS)
    assert await attempts.count("a@x", "192.0.2.2") == 0


async def test_successful_sign_ins_do_not_count_as_attempts(site: Site):
    for _ in range(MAX_ATTEMPTS + 2):
        assert (await site.attempt()).status_code == 200


async def test_sign_in_from_another_site_is_rejected(site: Site):
    browser = await site.browser()
    del browser.headers["sec-fetch-site"]
    refused: list[dict[str, str]] = [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin", "origin": "https://evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ]
    token = await site.link()
    for headers in refused:
        for path, body in (("link", {"token": token}), ("password", {"email": EMAIL, "password": PASSWORD})):
            assert error_of(await browser.post(f"/admin/sign-in/{path}", json=body, headers=headers)) == CROSS, headers
    accepted = await browser.post("/admin/sign-in/link", json={"token": token}, headers={"origin": ORIGIN})
    assert accepted.status_code == 200


async def test_sign_in_over_plain_http_works_only_on_this_machine(site: Site):
    for origin in ("http://192.0.2.1:8787", "http://hearth.example"):
        browser = await site.browser(origin)
        response = await browser.post(
            "/admin/sign-in/link", json={"token": await site.link()}, headers={"origin": origin}
        )
        assert error_of(response) == FAILED
        assert "https://" in response.json()["errors"][0]["message"]
    for origin in (LOCAL, "http://localhost:9000", "http://[::1]:8787"):
        browser = await site.signed_in(origin)
        (cookie,) = browser.cookies.jar
        assert re.fullmatch(r"hearth-session-\d+", cookie.name), "ports of a host share cookies"
        assert not cookie.secure
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert (await browser.get("/admin/session", headers={"origin": origin})).status_code == 200


async def test_cookie_of_other_hosts_is_secure_and_bound_to_the_host(site: Site):
    browser = await site.browser()
    response = await browser.post("/admin/sign-in/link", json={"token": await site.link()})
    cookie = response.headers["set-cookie"]
    assert re.fullmatch(r"__Host-hearth-session=\S+; Path=/; Secure; HttpOnly; SameSite=Strict", cookie)


async def test_new_sign_in_gets_a_new_session_id(site: Site):
    """A session id that an attacker put into the browser before the sign-in is worthless afterwards."""
    browser = await site.signed_in()
    planted = browser.cookies["__Host-hearth-session"]
    await browser.post("/admin/sign-in/link", json={"token": await site.link()})
    assert browser.cookies["__Host-hearth-session"] != planted


@pytest.mark.parametrize("change", ["password", "removal", "role"])
async def test_change_of_an_operator_ends_the_sessions(site: Site, change: str):
    browser, database = await site.signed_in(), site.services.database
    context = _context(site)
    if change == "password":
        await operators.set_password(database, site.user_id, hash_password("another password"), context=context)
    elif change == "removal":
        await operators.remove(database, site.user_id, context=context)
    else:
        await operators.add(database, EMAIL, role="viewer", password_hash=None, context=context)
    assert error_of(await browser.get(f"{API}/accounts")) == SIGNED_OUT
    assert error_of(await browser.get("/admin/session")) == SIGNED_OUT


async def test_change_of_a_membership_applies_to_running_sessions(site: Site):
    browser, database = await site.signed_in(), site.services.database
    path = f"{API}/accounts/{site.account_id}"
    assert (await browser.put(path, json={"name": "x"})).status_code == 200
    await users.set_role(database, site.user_id, site.account_id, "viewer", context=_context(site))
    assert error_of(await browser.put(path, json={"name": "y"})) == FORBIDDEN
    assert (await browser.get(path)).status_code == 200
    await users.leave(database, site.user_id, site.account_id, context=_context(site))
    assert error_of(await browser.get(path)) == FORBIDDEN


async def test_only_members_run_models_with_a_session(site: Site):
    """A role on the platform does not allow models, because the account would pay for them."""
    path = f"{API}/accounts/{site.account_id}/ai/run/{PARROT}"
    for role, platform_role, may_run in (
        ("administrator", None, True),
        ("developer", None, True),
        ("developer", "viewer", True),
        ("viewer", None, False),
        ("viewer", "administrator", False),
        (None, "administrator", False),
        (None, "viewer", False),
    ):
        browser = await site.signed_in(user_id=await site.member(role, platform_role))
        response = await browser.post(path, json={"prompt": "x"})
        is_refused = error_of(response) == FORBIDDEN
        assert is_refused is not may_run, (role, platform_role, response.text)
        del browser.headers["x-hearth-csrf"]
        assert error_of(await browser.post(path, json={"prompt": "x"})) == CROSS, "a call without the CSRF token"


async def test_platform_administrator_manages_a_blocked_account_that_members_cannot_use(site: Site):
    both = await site.signed_in(user_id=await site.member("administrator", "administrator"))
    ann = await site.signed_in()
    await accounts.set_blocked(site.services.database, site.account_id, True, context=_context(site))
    path = f"{API}/accounts/{site.account_id}"
    assert error_of(await ann.get(path)) == (403, 3023)
    assert (await both.get(path)).status_code == 200
    assert error_of(await both.post(f"{path}/ai/run/{PARROT}", json={"prompt": "x"})) == FORBIDDEN


@pytest.mark.parametrize("password", ["", "x" * 11, "x" * 257])
def test_password_of_a_wrong_length_is_rejected(password: str):
    with pytest.raises(ValueError, match="12 to 256 characters"):
        hash_password(password)


async def test_invalid_sign_in_bodies_are_rejected_without_showing_values(site: Site):
    browser = await site.browser()
    for path, body in (
        ("password", {"email": EMAIL}),
        ("password", {"email": EMAIL, "password": 5}),
        ("password", {"email": EMAIL, "password": "hunter2" * 200}),
        ("link", {}),
        ("link", {"token": "x" * 129}),
    ):
        response = await browser.post(f"/admin/sign-in/{path}", json=body)
        assert error_of(response) == (400, 1004)
        assert "hunter2" not in response.text
    for token in ("", "x", "\0", "é" * 40):
        assert error_of(await browser.post("/admin/sign-in/link", json={"token": token})) == FAILED


async def test_expired_link_is_deleted_when_a_new_one_is_created(site: Site):
    clock = HandClock()
    await site.link(clock=clock)
    clock.pass_time(timedelta(days=1).total_seconds())
    other = await site.member("viewer")
    await operators.create_link(site.services.database, PEPPER, other, clock=clock)
    async with site.services.database.connection() as connection:
        rows = await connection.exec_driver_sql("SELECT user_id FROM sign_in_links")
        assert [user_id for (user_id,) in rows] == [other]


def _context(site: Site) -> Any:
    from tenants.change_context import ChangeContext

    return ChangeContext(ephemeral=site.services.ephemeral)
