"""First steps in a real browser: create an account and a token, call with the token, chat, and revoke the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.clients.dashboard.conftest import Dashboard
from tests.waiting import wait_until_blocking

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]


def create_account(page: Page, dashboard: Dashboard, name: str) -> str:
    """Create an account with the dialog and return its id."""
    page.goto(dashboard.url("accounts"))
    page.get_by_role("button", name="Create account").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_role("button", name="Create account").click()
    page.wait_for_url(dashboard.url("accounts/*"))
    return page.url.partition("account=")[2]


def create_token(page: Page, dashboard: Dashboard, account_id: str, name: str) -> str:
    """Create a token with the default permissions and return its secret."""
    page.goto(dashboard.url(f"tokens/new?account={account_id}"))
    page.get_by_label("Name", exact=False).first.fill(name)
    page.get_by_role("button", name="Create token").click()
    secret = page.get_by_label("Secret of the token")
    secret.wait_for()
    return secret.input_value()


def status_with(dashboard: Dashboard, account_id: str, secret: str) -> int:
    platform = dashboard.platform
    url = f"{platform.ai_url(account_id)}/run/{platform.chat_model}"
    body = {"prompt": "Hello", "max_tokens": 4}
    return httpx.post(url, json=body, headers={"Authorization": f"Bearer {secret}"}).status_code


def test_new_account_and_token_can_call_a_model_until_the_token_is_revoked(signed_in: Page, dashboard: Dashboard):
    page = signed_in
    account_id = create_account(page, dashboard, "Research team")
    assert len(account_id) == 32
    secret = create_token(page, dashboard, account_id, "laptop")
    assert status_with(dashboard, account_id, secret) == 200
    page.get_by_role("link", name="Done").click()
    page.get_by_label("Actions for laptop").click()
    assert secret not in page.content(), "the secret is shown again"
    page.get_by_role("menuitem", name="Revoke").click()
    dialog = page.get_by_role("dialog")
    assert "laptop" in dialog.inner_text(), "the question does not name the token"
    dialog.get_by_role("button", name="Revoke token").click()
    page.get_by_text("The token is revoked.").wait_for()
    wait_until_blocking(lambda: status_with(dashboard, account_id, secret) == 401)
    page.get_by_text("No API token yet").wait_for()


def test_account_that_an_administrator_creates_can_be_used_in_the_playground_at_once(
    signed_in: Page, dashboard: Dashboard
):
    """The administrator is a member of the new account, also in the session that is open already."""
    account_id = create_account(signed_in, dashboard, "Playground team")
    chat(signed_in, dashboard, account_id, "What is the capital of France?")


RENAME = """async ([path, name]) => {
  const session = (await (await fetch("/admin/session")).json()).result;
  const headers = {"x-hearth-csrf": session.csrf_token};
  return (await fetch(path, {method: "PUT", headers, body: JSON.stringify({name})})).status;
}"""


def test_second_of_two_people_who_rename_an_account_can_load_the_current_name(signed_in: Page, dashboard: Dashboard):
    page = signed_in
    account_id = create_account(page, dashboard, "Original")
    name = page.get_by_role("main").get_by_label("Name")
    name.fill("Mine")
    assert page.evaluate(RENAME, [f"/client/v4/accounts/{account_id}", "Theirs"]) == 200
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Someone else has changed this account").wait_for()
    assert name.input_value() == "Mine", "the typed name is lost"
    page.get_by_role("button", name="Load the current values").click()
    page.get_by_role("heading", name="Theirs").wait_for()
    assert name.input_value() == "Theirs"


def chat(page: Page, dashboard: Dashboard, account_id: str, text: str) -> None:
    page.goto(dashboard.url(f"playground?account={account_id}&model={dashboard.platform.chat_model}"))
    page.get_by_label("Message", exact=True).fill(text)
    with page.expect_response(lambda response: "/chat/completions" in response.url) as call:
        page.keyboard.press("Enter")
    assert call.value.status == 200
    assert call.value.headers["content-type"] == "text/event-stream"
    page.get_by_text("tokens/s").first.wait_for()


def test_chat_streams_tokens_and_shows_its_speed(signed_in: Page, dashboard: Dashboard):
    account_id = dashboard.platform.account_id
    before = len(dashboard.platform.usage_rows())
    chat(signed_in, dashboard, account_id, "What is the capital of Portugal?")
    signed_in.get_by_text("Lisbon").first.wait_for()
    rows = wait_until_blocking(lambda: dashboard.platform.usage_rows()[before:])
    assert (rows[-1]["account_id"], rows[-1]["is_stream"]) == (account_id, 1)


def test_viewer_of_an_account_cannot_chat_there(page: Page, dashboard: Dashboard):
    account_id = dashboard.platform.account_id
    dashboard.add_operator("viewer@example.org", "--account", account_id, "--account-role", "viewer")
    dashboard.sign_in(page, "viewer@example.org")
    page.goto(dashboard.url("playground"))
    page.get_by_role("heading", name="Playground").wait_for()
    status = page.evaluate(
        """async ([path]) => {
          const session = (await (await fetch("/admin/session")).json()).result;
          const headers = {"x-hearth-csrf": session.csrf_token};
          return (await fetch(path, {method: "POST", headers, body: '{"prompt": "x"}'})).status;
        }""",
        [f"/client/v4/accounts/{account_id}/ai/run/{dashboard.platform.chat_model}"],
    )
    assert status == 403
