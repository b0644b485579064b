"""Two accounts: the administrator of one account sees nothing of the other, on any screen or route."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.app import ROUTES
from gateway.call import WebSocketEndpoint
from tests.clients.dashboard.conftest import SCREENS, Dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Page, Response

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SECRET = "Kestrel"  # part of every name of the other account
PLATFORM_SCREENS = {"fleet", "settings", "health"}

CALL = """async ([method, path, csrfToken]) => {
  const headers = method === "GET" ? {} : {"x-hearth-csrf": csrfToken};
  const response = await fetch(path, {method, headers, body: method === "GET" ? undefined : "{}"});
  return [response.status, await response.text()];
}"""
CSRF_TOKEN = "fetch('/admin/session').then(r => r.json()).then(body => body.result.csrf_token)"


@pytest.fixture(scope="module")
def accounts(dashboard: Dashboard) -> tuple[str, str]:
    """The ids of Ann's account and of another, which has a token, a member, a budget and calls."""
    platform = dashboard.platform
    own = platform.hearth("account", "create", "Own team")["account_id"]
    other = platform.hearth("account", "create", f"{SECRET} account")["account_id"]
    dashboard.add_operator("isolated@example.org", "--account", own)
    dashboard.add_operator(f"{SECRET.lower()}@example.org", "--account", other)
    token = platform.hearth("token", "create", "--account", other, "--name", f"{SECRET} token")["secret"]
    platform.hearth("budget", "set", "12345", "--account", other)
    with platform.client(token) as client:
        url = f"{platform.ai_url(other)}/run/{platform.chat_model}"
        assert client.post(url, json={"prompt": "Hello", "max_tokens": 2}).status_code == 200
    return own, other


def test_list_of_screens_is_complete():
    source = (Path(__file__).parents[3] / "dashboard/src/app/screens.tsx").read_text()
    assert set(re.findall(r'path: "([a-z-]+)"', source)) == set(SCREENS)


def test_no_screen_shows_anything_of_the_other_account(
    page_of: Callable[[str], Page], dashboard: Dashboard, accounts: tuple[str, str]
):
    own, other = accounts
    page = page_of("isolated@example.org")
    seen: list[tuple[str, str]] = []
    page.on("response", lambda response: seen.append((response.url, _text(response))))
    for screen in SCREENS:
        for query in ("", f"?account={own}", f"?account={other}"):
            page.goto(dashboard.url(f"{screen}{query}"))
            page.locator("#content").wait_for()
            page.wait_for_load_state("load")
            page.get_by_label("Loading").first.wait_for(state="detached")
            assert SECRET.lower() not in page.locator("body").inner_text().lower(), (screen, query)
    navigation = page.get_by_label("Screens").inner_text()
    assert not any(screen.title() in navigation for screen in PLATFORM_SCREENS)
    assert [url for url, text in seen if SECRET.lower() in text.lower()] == []
    owner = page_of(f"{SECRET.lower()}@example.org")
    owner.goto(dashboard.url("accounts"))
    owner.get_by_role("link", name=f"{SECRET} account").first.wait_for()


def _text(response: Response) -> str:
    if "json" not in response.headers.get("content-type", ""):
        return ""
    try:
        return response.text()
    except Exception:  # the page has gone to the next screen, which shows nothing of this response
        return ""


def test_every_route_of_the_other_account_is_refused(
    page_of: Callable[[str], Page], dashboard: Dashboard, accounts: tuple[str, str]
):
    _, other = accounts
    page = page_of("isolated@example.org")
    csrf_token = page.evaluate(CSRF_TOKEN)
    wrong: list[Any] = []
    num_routes = 0
    for route in ROUTES:
        if "{account_id}" not in route.path or route.path.endswith("/tokens/verify"):
            continue
        if isinstance(route.endpoint, WebSocketEndpoint):  # refuses any request that is no handshake
            continue
        path = route.path.replace("{account_id}", other).replace("{model...}", dashboard.platform.chat_model)
        path = re.sub(r"\{[a-z_.]+\}", "0" * 32, path)
        status, text = page.evaluate(CALL, [route.method, path, csrf_token])
        num_routes += 1
        if status != 403 or SECRET.lower() in text.lower():
            wrong.append((route.method, path, status, text[:200]))
    assert wrong == []
    assert num_routes > 50


def test_routes_of_the_whole_platform_are_refused_to_an_account_administrator(
    page_of: Callable[[str], Page], accounts: tuple[str, str]
):
    page = page_of("isolated@example.org")
    for path in ("nodes", "pops", "health", "settings", "audit_logs", "usage", "usage/calls", "metrics/summary"):
        status, text = page.evaluate(CALL, ["GET", f"/client/v4/{path}", ""])
        assert status == 403, (path, text)
    status, text = page.evaluate(CALL, ["GET", "/client/v4/accounts?per_page=50", ""])
    assert status == 200
    assert SECRET.lower() not in text.lower()
