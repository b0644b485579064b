"""Sign-in to the dashboard in a real browser: links, passwords, ended sessions, and requests of other pages."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from tests.clients.dashboard.conftest import Dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

USER_MENU = "User menu"


def end_sessions(dashboard: Dashboard) -> None:
    """End all sessions at the server, as after half an hour without use."""
    with contextlib.closing(Redis.from_url(dashboard.platform.redis_url)) as redis:
        for key in redis.scan_iter("web-session:*"):
            redis.delete(key)


def test_link_of_the_terminal_signs_in_with_one_click(page: Page, dashboard: Dashboard):
    page.goto(dashboard.link())
    page.get_by_role("heading", name="Overview").wait_for()
    assert "#" not in page.url, "the link's token stays in the address bar"
    page.get_by_label(USER_MENU).click()
    page.get_by_text("admin@localhost").wait_for()
    page.get_by_text("Platform administrator").wait_for()
    (cookie,) = page.context.cookies()
    assert re.fullmatch(r"hearth-session-\d+", cookie["name"])
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""


def test_used_link_says_how_to_get_another(page: Page, dashboard: Dashboard):
    link = dashboard.link()
    page.goto(link)
    page.wait_for_url(dashboard.url("overview*"))
    page.context.clear_cookies()
    page.goto(dashboard.url("nowhere"))
    page.goto(link)
    page.get_by_role("heading", name="This link does not work").wait_for()
    assert "hearth dashboard" in (page.locator("main").text_content() or "")


def test_password_signs_in_and_the_menu_signs_out(page: Page, dashboard: Dashboard):
    password = dashboard.add_operator("ann@example.org", "--role", "viewer")
    page.goto(dashboard.url("audit"))
    page.get_by_label("Email").fill("ann@example.org")
    page.get_by_role("textbox", name="Password").fill("not the password")
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_text("the email or the password is wrong").wait_for()
    page.get_by_role("textbox", name="Password").fill(password)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(dashboard.url("audit*"))
    page.get_by_label(USER_MENU).click()
    page.get_by_role("menuitem", name="Sign out").click()
    page.wait_for_url(dashboard.url("sign-in*"))
    page.goto(dashboard.url("accounts"))
    page.wait_for_url(dashboard.url("sign-in*"))


def test_ended_session_returns_to_the_same_page_after_the_sign_in(page: Page, dashboard: Dashboard):
    password = dashboard.add_operator("bob@example.org", "--role", "viewer")
    dashboard.sign_in(page, "bob@example.org")
    where = dashboard.url(f"usage?account={dashboard.platform.account_id}")
    page.goto(where)
    page.get_by_role("heading", name="Usage").first.wait_for()
    end_sessions(dashboard)
    page.reload()
    page.wait_for_url(dashboard.url("sign-in*"))
    page.get_by_label("Email").fill("bob@example.org")
    page.get_by_role("textbox", name="Password").fill(password)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(where)


FETCH = """async ([path, method, headers]) => {
  const response = await fetch(path, {method, headers, body: method === "GET" ? undefined : "{}"});
  return [response.status, (await response.json()).errors[0]?.code ?? 0];
}"""


def test_changes_need_the_token_of_the_session(signed_in: Page, dashboard: Dashboard):
    def fetch(path: str, method: str, **headers: str) -> Any:
        return signed_in.evaluate(FETCH, [path, method, headers])

    account = f"/client/v4/accounts/{dashboard.platform.account_id}"
    changes = [
        ("POST", "/client/v4/accounts"),
        ("PUT", account),
        ("DELETE", account),
        ("POST", f"{account}/tokens"),
        ("POST", f"{account}/ai/run/{dashboard.platform.chat_model}"),
        ("PUT", f"{account}/ai/usage/budgets"),
        ("POST", "/client/v4/user/tokens"),
        ("PATCH", "/client/v4/user"),
        ("POST", "/admin/sign-out"),
    ]
    for method, path in changes:
        assert fetch(path, method) == [403, 10004], path
        assert fetch(path, method, **{"x-hearth-csrf": "0" * 64}) == [403, 10004], path
    assert fetch(account, "GET") == [200, 0], "reading needs no token"


def test_page_of_another_origin_can_use_no_session(signed_in: Page, dashboard: Dashboard):
    """A page of another port on the same host is the nearest attacker: its requests carry the same host's cookies."""
    other = dashboard.origin.replace("127.0.0.1", "localhost")
    csrf_token = signed_in.evaluate("fetch('/admin/session').then(r => r.json()).then(o => o.result.csrf_token)")
    attacker = signed_in.context.new_page()
    attacker.goto(f"{other}/docs")
    attempt = """async ([url, method, headers]) => {
      try {
        const response = await fetch(url, {method, headers, credentials: "include", mode: "cors"});
        return response.status;
      } catch { return "blocked"; }
    }"""
    account = f"{dashboard.origin}/client/v4/accounts/{dashboard.platform.account_id}"
    for url, method in ((f"{dashboard.origin}/admin/session", "GET"), (account, "GET"), (account, "DELETE")):
        said = attacker.evaluate(attempt, [url, method, {"x-hearth-csrf": csrf_token} if method == "DELETE" else {}])
        assert said in ("blocked", 400, 401, 403), (url, method, said)
    still_there = signed_in.evaluate(FETCH, [account, "GET", {}])
    assert still_there == [200, 0]
