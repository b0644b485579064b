"""Every screen has no serious accessibility fault (axe-core) and fits its window, wide and narrow, light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scripts import build_dashboard
from tests.clients.browser import new_context
from tests.clients.dashboard.conftest import SCREENS, Dashboard
from tests.waiting import wait_until_blocking

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

AXE = build_dashboard.SOURCES / "node_modules/axe-core/axe.min.js"
SERIOUS = ("serious", "critical")
PLACES = (
    "tokens/new?account={account}", "usage?account={account}&view=budgets", "models/{model}?account={account}",
    "accounts/{account}?account={account}&tab=members", "accounts/{account}?account={account}&tab=operation",
)  # fmt: skip
WINDOWS = {"wide and light": (1280, 800, "light"), "phone and dark": (390, 844, "dark")}


def faults_of(page: Page) -> list[str]:
    """Return the serious faults of a page, each as rule and element."""
    page.evaluate(AXE.read_text())  # runs in the page's console, so the security policy does not apply
    result: dict[str, Any] = page.evaluate("axe.run(document)")
    assert len(result["passes"]) > 5, "axe did not check the page"
    return [
        f"{fault['id']}: {node['html'][:120]}"
        for fault in result["violations"]
        if fault["impact"] in SERIOUS
        for node in fault["nodes"]
    ]


def wait_for_content(page: Page) -> None:
    page.get_by_role("main").get_by_role("heading").first.wait_for()
    loading = page.locator("main [aria-label^=Loading], main .mantine-Skeleton-root")
    wait_until_blocking(lambda: loading.count() == 0)


def invite(page: Page, dashboard: Dashboard, email: str) -> None:
    """Invite a person to the account, so that the list of members has a pending one."""
    account_id = dashboard.platform.account_id
    page.goto(dashboard.url(f"accounts/{account_id}?account={account_id}&tab=members"))
    page.get_by_role("button", name="Invite").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Email").fill(email)
    dialog.get_by_role("button", name="Invite").click()
    dialog.wait_for(state="detached")


@pytest.mark.parametrize("window", WINDOWS)
def test_screens_have_no_serious_fault_and_do_not_scroll_sideways(browser: Browser, dashboard: Dashboard, window: str):
    width, height, scheme = WINDOWS[window]
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, "reduced_motion": "reduce"}
    found: dict[str, list[str]] = {}
    with new_context(browser, **options) as context:
        page = context.new_page()
        dashboard.sign_in(page)
        platform = dashboard.platform
        invite(page, dashboard, f"invited-{width}@example.org")
        for screen in (*(f"{each}?account={{account}}" for each in SCREENS), *PLACES):
            page.goto(dashboard.url(screen.format(account=platform.account_id, model=platform.chat_model)))
            wait_for_content(page)
            faults = faults_of(page)
            excess = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            if excess > 0:
                faults.append(f"the page is {excess} pixels wider than the window")
            if faults:
                found[screen] = faults
    assert not found, "\n".join(f"{screen}: {fault}" for screen, faults in found.items() for fault in faults)
