"""The dashboard without a mouse: visible focus, the command palette, dialogs, and a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.clients.dashboard.conftest import SCREENS, Dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

# The focus is visible if the element looks different without it.
FOCUSED = """() => {
  const element = document.activeElement, box = element.getBoundingClientRect();
  const look = () => {
    for (const each of document.getAnimations()) if (each instanceof CSSTransition) each.finish();
    const style = getComputedStyle(element);
    return [style.outlineStyle, style.outlineColor, style.boxShadow, style.borderTopColor, style.transform].join();
  };
  const label = element.getAttribute("aria-label") || element.innerText || element.getAttribute("name") || "";
  const focused = look();
  element.blur();
  const isMarked = look() !== focused;
  element.focus();
  const isVisible = box.width > 0 && box.height > 0;
  return {tag: element.tagName, label: label.trim().split("\\n")[0], isVisible, isMarked};
}"""


def test_tab_reaches_the_skip_link_the_menu_and_every_screen(signed_in: Page, dashboard: Dashboard):
    page = signed_in
    page.goto(dashboard.url("tokens"))
    page.get_by_role("heading", name="API tokens").wait_for()
    labels = []
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused["tag"] == "BODY":
            break
        assert focused["isVisible"], focused
        assert focused["isMarked"], focused
        labels.append(focused["label"])
    assert labels[0] == "Skip to content"
    navigation = page.get_by_label("Screens").inner_text().splitlines()
    titles = [text for text in navigation if text in labels]
    assert len(titles) >= len(SCREENS), (labels, navigation)
    assert "User menu" in labels
    assert "Create token" in labels


def test_palette_opens_a_screen_and_escape_closes_dialogs(signed_in: Page, dashboard: Dashboard):
    page = signed_in
    page.get_by_role("heading", name="Overview").wait_for()
    page.keyboard.press("Control+k")
    page.get_by_placeholder("Go to a screen or an account").wait_for()
    page.keyboard.type("accounts")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(dashboard.url("accounts*"))
    page.get_by_role("button", name="Create account").first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert dialog.evaluate("element => element.contains(document.activeElement)"), "focus stays behind the dialog"
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_account_token_and_chat_need_only_the_keyboard(signed_in: Page, dashboard: Dashboard):
    page, platform = signed_in, dashboard.platform
    page.goto(dashboard.url("accounts?new=1"))
    page.get_by_role("dialog").wait_for()
    page.keyboard.type("Typed team")
    page.keyboard.press("Enter")
    page.wait_for_url(dashboard.url("accounts/*"))
    account_id = page.url.partition("account=")[2]
    page.goto(dashboard.url(f"tokens/new?account={account_id}"))
    name = page.get_by_label("Name", exact=False).first
    name.focus()
    page.keyboard.type("typed")
    page.keyboard.press("Enter")
    page.get_by_label("Secret of the token").wait_for()
    page.goto(dashboard.url(f"playground?account={account_id}&model={platform.chat_model}"))
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.type("What is the capital of Italy?")
    page.keyboard.press("Enter")
    page.get_by_text("Rome").first.wait_for()
