"""Names that contain HTML, right-to-left marks or very long words are displayed as text on every screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.clients.dashboard.conftest import SCREENS, Dashboard
from tests.platform import Platform

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

RAN = "window.hearthRan = 1"
PAYLOADS = (
    f"<script>{RAN}</script>",
    f'"><img src=x onerror="{RAN}">',
    f"<svg/onload={RAN}>",
    f"{{{{constructor.constructor('{RAN}')()}}}}",
    "</title></textarea><iframe src=javascript:alert(1)>",
    "\u05e9\u05dc\u05d5\u05dd <b>" * 20,
    "W" * 200,
)


@pytest.fixture(scope="module")
def headers(platform: Platform) -> dict[str, str]:
    """The global key of a user who creates accounts."""
    email = "author@example.org"
    return {"x-auth-email": email, "x-auth-key": platform.hearth("user", "create", email)["global_key"]}


def create(platform: Platform, headers: dict[str, str], payload: str) -> str:
    """Create an account with a token and a finetune that have this name, and return its id."""
    with httpx.Client(headers=headers) as client:

        def post(path: str, body: Any) -> Any:
            response = client.post(platform.base_url + path, json=body)
            assert response.status_code == 200, response.text
            return response.json()["result"]

        account_id = post("/accounts", {"name": payload})["id"]
        group = {"id": "a92d2450e05d4e7bb7d0a64968f83d11"}
        resources = {f"com.cloudflare.api.account.{account_id}": "*"}
        policy = {"effect": "allow", "permission_groups": [group], "resources": resources}
        post(f"/accounts/{account_id}/tokens", {"name": payload[:120], "policies": [policy]})
        client.patch(f"{platform.base_url}/user", json={"first_name": payload[:60]}).raise_for_status()
        client.post(
            f"{platform.base_url}/accounts/{account_id}/ai/finetunes",
            json={"model": platform.chat_model, "name": payload[:60], "description": payload},
        )  # a name that a finetune may not have is rejected
        return str(account_id)


def test_stored_payloads_are_shown_as_text_and_never_run(
    signed_in: Page, dashboard: Dashboard, headers: dict[str, str]
):
    page, platform = signed_in, dashboard.platform
    dialogs: list[Dialog] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog), dialog.dismiss()))
    account_ids = [create(platform, headers, payload) for payload in PAYLOADS]
    dashboard.add_operator("<svg/onload=alert(1)>@example.org", "--account", account_ids[0], "--role", "viewer")
    platform.hearth("model", "alias", "@cf/x/onerror-alert-1", platform.chat_model)
    paths = [f"{screen}?account={account_id}" for account_id in account_ids for screen in ("tokens", "audit", "usage")]
    paths += [f"accounts/{account_id}?account={account_id}" for account_id in account_ids]
    paths += [*SCREENS, f"accounts?name={PAYLOADS[0]}", f"logs?model={PAYLOADS[1]}", f"tokens?search={PAYLOADS[2]}"]
    for path in paths:
        page.goto(dashboard.url(path))
        page.locator("#content").wait_for()
        page.get_by_label("Loading").first.wait_for(state="detached")
        assert page.evaluate("window.hearthRan") is None, path
        assert page.locator("#root img[src='x'], #root iframe, #root script, #root svg[onload]").count() == 0, path
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{path} is {overflow} pixels too wide"
    page.goto(dashboard.url("accounts"))
    page.get_by_text(PAYLOADS[0]).first.wait_for()
    assert dialogs == []
